"""What the documentation quotes and links to is there."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from gspo.config.names import all_keys

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```\w*\n.*?^```$", re.S | re.M)


def name(page):
    return page.relative_to(ROOT).as_posix()


def anchors(page):
    """The anchors of a page's headings, as code hosts make them."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_resolve(page):
    text = FENCE.sub("", page.read_text())
    for link in re.findall(r'\]\(([^)\s]+)\)|(?:src|srcset|href)="([^"]+)"', text):
        target, _, anchor = (link[0] or link[1]).partition("#")
        if ":" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{name(page)}: {target}"
        assert not anchor or anchor in anchors(path), f"{name(page)}: {target}#{anchor}"


def defined(path):
    """The names that a Python file defines: NAME, function, Class, Class.method and Class.field."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
            found |= {f"{node.name}.{part.target.id}" for part in node.body if isinstance(part, ast.AnnAssign)}
    return found


# The record says what was: its names are those of its day.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("log.md", "CHANGELOG.md")], ids=name)
def test_names_exist(page):
    text = page.read_text()
    for path, named in re.findall(r"`([\w/]+\.py):([\w.]+)`", text):
        file = ROOT / path if path.startswith("tests/") else ROOT / "src/gspo" / path
        assert named in defined(file), f"{name(page)}: {path}:{named}"
    keys = set(all_keys())
    sections = {key.partition(".")[0] for key in keys}
    for key in re.findall(r"`(\w+\.\w+)(?: = [^`]+)?`", text):
        known = key in keys or key.partition(".")[0] not in sections or key.endswith((".py", ".toml", ".md"))
        assert known, f"{name(page)}: {key}"


def test_the_readme_shows_the_example_of_ten_lines_as_it_is():
    code = (ROOT / "examples/ten_lines.py").read_text()
    assert f"```python\n{code}```\n" in (ROOT / "README.md").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_layers_are_those_of_the_import_rules():
    page = (ROOT / "docs/architecture.md").read_text()
    shown = page.split("<!-- layers, as in pyproject.toml -->\n```text\n")[1].split("\n```")[0].splitlines()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert shown == contracts[0]["layers"]
