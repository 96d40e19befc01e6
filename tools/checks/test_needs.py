"""Each third-party import in the source is of a core dependency, or of a package in the table of optional ones."""

import ast
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from gspo.config.needs import NEEDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gspo"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOR_US = {"test", "bench", "dev"}
"""Extras that are for work on gspo itself."""
OPTIONAL = {package: need.extra for need in NEEDS for package in need.packages.split()}
BRINGS = {"filelock": "torch", "huggingface_hub": "transformers", "tokenizers": "transformers", "markupsafe": "jinja2"}
BRINGS |= {"starlette": "fastapi", "pydantic": "fastapi"}
"""What is imported without being named in pyproject.toml, with what requires it."""
ELSEWHERE = {"art"}
"""Imported by gspo.ArtBackend alone, which no setting needs; it checks the version itself (serving/art_backend.py)."""


def modules(requirements):
    """The names under which requirements are imported."""
    names = (line.partition(">")[0].partition("=")[0].replace("-", "_") for line in requirements)
    return {name.replace("markdown_it_py", "markdown_it") for name in names}


def imported(text):
    """The third-party modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
        else:
            continue
        yield from {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"gspo"}


def unknown(files):
    """`file: module` for each import that nothing promises."""
    known = modules(PROJECT["dependencies"]) | set(OPTIONAL) | ELSEWHERE
    known |= {name for name, parent in BRINGS.items() if parent in known}
    return [
        f"{path}: {name}" for path, text in files.items() for name in imported(text)
        if name not in known and not (path.parent / f"{name}.py").exists()
    ]  # fmt: skip


def test_each_import_is_of_a_dependency_or_of_the_table_of_needs():
    files = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert unknown(files) == []
    lazy = "def f():\n    from new_library.part import g\n    return g\n"
    assert unknown({SOURCE / "lazy.py": lazy}) == [f"{SOURCE / 'lazy.py'}: new_library"]


def test_the_table_names_the_extras_that_install_its_packages():
    extras = {name: modules(lines) for name, lines in PROJECT["optional-dependencies"].items() if name not in FOR_US}
    for package, extra in OPTIONAL.items():
        assert extra == "" or package in extras[extra] or package == "pyarrow", package  # of datasets
    assert set(extras) == {extra for extra in OPTIONAL.values() if extra} | {"demo"}  # which is of other extras' packages


def test_what_is_not_named_is_brought_by_what_is():
    for name, parent in (BRINGS | {"pyarrow": "datasets"}).items():
        assert any(line.replace("-", "_").lower().startswith(name) for line in metadata.requires(parent) or []), name
