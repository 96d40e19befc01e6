"""The shape of the source in numbers: `python tools/shape.py [ROOT] [--word advantage]`. For redesigns, before and after."""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import tomllib
from collections import defaultdict
from pathlib import Path

Graph = dict[str, set[str]]


def modules(source: Path) -> dict[str, Path]:
    """The modules of the package, by name."""
    names = {path: ".".join(path.relative_to(source.parent).with_suffix("").parts) for path in source.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for path, name in names.items()}


def imports(found: dict[str, Path]) -> Graph:
    """What each module imports, wherever in its file."""
    graph: Graph = {}
    for name, path in found.items():
        taken: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                wholes = [f"{node.module}.{alias.name}" for alias in node.names]
                taken |= {whole if whole in found else node.module for whole in wholes}
            elif isinstance(node, ast.Import):
                taken |= {alias.name for alias in node.names}
        graph[name] = (taken & found.keys()) - {name, "gspo"} if name != "gspo" else set()
    return graph


def longest_chain(graph: Graph) -> list[str]:
    """The longest way along imports."""
    chains: dict[str, list[str]] = {}

    def chain(name: str) -> list[str]:
        if name not in chains:
            chains[name] = [name, *max((chain(other) for other in graph[name]), key=len, default=[])]
        return chains[name]

    return max(map(chain, graph), key=len)


def room(name: str) -> str:
    """The package or the module at the root that a module belongs to."""
    return name.split(".")[1] if "." in name else name


def main() -> None:
    """Prints the numbers."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[1], help="a checkout")
    parser.add_argument("--word", action="append", default=[], help="count the rooms whose code has this word")
    options = parser.parse_args()
    source = options.root / "src" / "gspo"
    found = modules(source)
    graph, trees = imports(found), {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in found.items()}
    files = {name: path for name, path in found.items() if path.name != "__init__.py"}
    lines = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in files.values())
    rules = tomllib.loads((options.root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    functions = sorted(
        (node.end_lineno - node.lineno + 1, f"{name}.{node.name}")
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno
    )
    classes = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
    tests = {path.relative_to(options.root / "tests") for path in (options.root / "tests").rglob("test_*.py")}
    mirrored = [path for path in files.values() if path.relative_to(source).with_name(f"test_{path.name}") in tests]
    between = {(room(name), room(other)) for name, taken in graph.items() for other in taken if room(name) != room(other)}
    print(f"modules at the root          {sum(path.parent == source for path in files.values())}")
    print(f"floors of imports            {len(rules[0]['layers'])}")
    print(f"longest chain of imports     {len(longest_chain(graph))}")
    print(f"rooms, arrows between them   {len({room(name) for name in found})}, {len(between)}")
    print(f"files, median and max lines  {len(files)}, {statistics.median(lines):g}, {lines[-1]}")
    print(f"longest functions            {', '.join(f'{name} {length}' for length, name in functions[:-4:-1])}")
    print(f"class names in two modules   {sum(len(places) > 1 for places in classes.values())}")
    print(f"modules with their own test  {len(mirrored)} of {len(files)}")
    for word in options.word:
        rooms = {room(n) for n, path in found.items() if re.search(rf"\b{word}\b", path.read_text(encoding="utf-8"))}
        print(f"rooms with {word!r:<17} {len(rooms)}: {', '.join(sorted(rooms))}")


if __name__ == "__main__":
    main()
