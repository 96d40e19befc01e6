"""The shape of the source: documented, small, without circles. Layers and forbidden imports are import-linter's."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gspo"
FILES = sorted(SOURCE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
Named = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def module(path):
    """gspo.data.prompts of .../gspo/data/prompts.py."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path): path for path in FILES}


def public(node, prefix):
    """Public classes, functions and methods below a node, with their names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Named) and not child.name.startswith("_"):
            yield f"{prefix}.{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{prefix}.{child.name}")


def imports(path):
    """Modules of gspo that a file imports, and the names that it takes from them, wherever in the file."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "gspo")
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if (node.module or "").split(".")[0] == "gspo":
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    yield whole if whole in MODULES else node.module


IMPORTS = {module(path): {name for name in imports(path) if name in MODULES} for path in FILES}


def within(name, package):
    return name == package or name.startswith(f"{package}.")


def reached(start):
    """All modules that importing `start` may import in the end."""
    found, todo = set(), [start]
    while todo:
        for name in IMPORTS[todo.pop()] - found:
            found.add(name)
            todo.append(name)
    return found


def test_every_public_name_is_documented():
    named = [(module(path), tree) for path, tree in TREES.items()]
    every = [*named, *(one for name, tree in named for one in public(tree, name))]
    assert [name for name, node in every if not ast.get_docstring(node)] == []


def documentation(node):
    """The lines of a function's docstring."""
    first = node.body[0]
    return first.end_lineno - first.lineno + 1 if ast.get_docstring(node) else 0


def test_files_and_functions_are_small():
    """A function counts without its docstring."""
    lines = {module(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {name: count for name, count in lines.items() if count > 350} == {}
    lengths = {
        f"{module(path)}.{node.name}": node.end_lineno - node.lineno + 1 - documentation(node)
        for path in FILES
        for node in ast.walk(TREES[path])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert {name: count for name, count in lengths.items() if count > 55} == {}


def test_no_two_classes_share_a_name():
    places = {}
    for path in FILES:
        for node in ast.walk(TREES[path]):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_module_imports_itself_in_a_circle():
    assert [name for name in MODULES if name in reached(name)] == []


def test_private_names_stay_in_their_module():
    wrong = [
        f"{module(path)} -> {node.module}.{alias.name}"
        for path in FILES
        for node in ast.walk(TREES[path])
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gspo"
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert wrong == []


# Nothing but a command line meets what these say: its own commands, the values typed on it, vLLM's own flags.
OF_THE_COMMAND_LINE = (
    "gspo.cli",
    "gspo.demo",
    "gspo.compare",
    "gspo.eval",
    "gspo.recipes",
    "gspo.assembly.export",
    "gspo.backends.vllm",
    "gspo.sandbox",  # bubblewrap's and the compiler's own
)


def texts(node):
    """Each text below a node, but for documentation; that of an f-string has an x for each value, whose own texts follow."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in child.values)
            for part in child.values:
                if isinstance(part, ast.FormattedValue):
                    yield from texts(part)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield child.value
        documentation = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not documentation and not isinstance(child, ast.JoinedStr):
            yield from texts(child)


def test_the_texts_of_an_f_string_are_those_within_its_braces_too():
    tree = ast.parse("""f"a {', or --flag' if b else f'{c} --other'} d\"""")
    assert [*texts(tree)] == ["a x d", ", or --flag", "x --other"]


def test_what_python_may_meet_speaks_of_no_flag_alone():
    wrong = []
    for path in FILES:
        if any(within(module(path), room) for room in OF_THE_COMMAND_LINE):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if module(path) == "gspo.config.files":  # `nested` reads what was typed
            tree.body = [node for node in tree.body if getattr(node, "name", "") != "nested"]
        flags = [text for text in texts(tree) if re.search(r"(?<![\w-])--[a-z]", text)]
        wrong += [(module(path), text) for text in flags if "from Python" not in text]
    assert wrong == []


# Modules without a test file of their name, and why.
UNTESTED = {
    "__init__.py",  # hands out names: tests/test_api.py
    # declarations: what holds for every section of the configuration is in tests/config/test_schema.py
    *("config/policy.py", "config/rewards.py", "config/rollout.py", "config/scale.py"),
    *("config/training.py", "interfaces.py", "learner/interfaces.py", "sandbox/types.py"),
    # parts of rewards/answers.py: tests/rewards/test_answers.py reads tests/rewards/pairs.txt through all of them
    *(f"rewards/{name}.py" for name in ("notation", "reader", "units", "evaluation", "equality")),
    # tested through what calls them, with the same inputs: tests/config/test_files.py and test_needs.py, cli/test_main.py,
    # rewards/test_channels.py, training/test_step.py, serving/, backends/hf/test_fake_device.py, vllm/test_readmission.py
    *(f"config/{name}.py" for name in ("field", "commands", "suggestions")),
    *("rewards/retry_policy.py", "data/reward_bounds.py", "learner/agreement.py", "cli/serve.py", "types.py"),
    "backends/vllm/errors.py",
    # needs verifiers, which is in another environment: tests/agents/test_verifiers_episodes.py plays whole episodes
    *("agents/verifiers_client.py", "agents/verifiers_harness.py"),
}


@pytest.mark.parametrize("folder", ["src/gspo", "lab"])
def test_no_number_with_a_sign_is_minus_nothing(folder):
    """ "-0.00" or "+0.00" would be the processor's choice: a sign wants z, which leaves it out of what is rounded to 0."""
    signed = re.compile(r"[:'\"]\+[\d,]*(\.\d+)?[efg%]")
    paths = sorted((ROOT / folder).rglob("*.py"))
    assert paths and {path.name: found for path in paths if (found := signed.findall(path.read_text("utf-8")))} == {}


def test_tests_mirror_the_source():
    """A module with a function or a class has a test file of its name."""
    named = {path.relative_to(SOURCE) for path in FILES if any(isinstance(node, Named) for node in ast.walk(TREES[path]))}
    tests = ROOT / "tests"
    missing = {path.as_posix() for path in named if not (tests / path.parent / f"test_{path.name}").exists()}
    assert missing == UNTESTED
