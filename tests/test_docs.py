"""What the documentation says: its Python runs, its links lead somewhere, the names in it exist."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.files import from_dict
from gspo.config.names import all_keys
from gspo.report.read import read_lines
from gspo.study.spec import read

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = "<!-- not run -->"
FENCE = re.compile(rf"({re.escape(NOT_RUN)}\n+)?^```(\w*)\n(.*?)^```$", re.S | re.M)
# The runs of the documentation, made small.
SMALL = {
    r'("steps"): \d+': r"\1: 1",
    r'("num_prompts"): \d+': r"\1: 4",
    r'("max_completion_length"): \d+': r"\1: 8",
}


def name(page):
    return page.relative_to(ROOT).as_posix()


def blocks(language):
    """The fenced blocks of a language that are to run, by page and number."""
    for page in PAGES:
        found = [(skip, body) for skip, kind, body in FENCE.findall(page.read_text()) if kind == language]
        yield from (pytest.param(body, id=f"{name(page)}-{i}") for i, (skip, body) in enumerate(found, 1) if not skip)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny model on the disk that reads and writes any ASCII text."""
    tokenizer = longest_match_tokenizer([chr(c) for c in range(32, 127)] + ["\n"])
    small = tiny_qwen3_moe(hidden=32, experts=4, expert_width=32, heads=2, kv_heads=1)
    folder = tmp_path_factory.mktemp("model")
    build_tiny(small, tokenizer).save(folder)
    return folder


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code, model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = code.replace("path/to/model", str(model_folder))
    for pattern, small in SMALL.items():
        code = re.sub(pattern, small, code)
    exec(compile(code, "documentation", "exec"), {"__name__": "documentation"})
    for path in tmp_path.rglob("metrics.jsonl"):
        steps = list(read_lines(path))
        assert {re.sub(r"(reward(?:_min|_max)?)/.*", r"\1/NAME", key) for line in steps for key in line} <= metrics()
        assert steps[-1]["step"] == 1 and not steps[-1]["rollouts/failed"]


def metrics():
    """The names in the first column of the table of metrics."""
    section = (ROOT / "docs/algorithm.md").read_text().split("## Metrics")[1].split("\n## ")[0]
    return {found for row in re.findall(r"^\| (`.*?) \|", section, re.M) for found in re.findall(r"`(.+?)`", row)}


@pytest.mark.parametrize("text", blocks("toml"))
def test_configuration_is_valid(text, tmp_path):
    if "[variants" in text:  # a study
        (tmp_path / "study.toml").write_text(text)
        (tmp_path / "my-run.toml").write_text('[model]\npath = "m"\n[task]\nsource = "t.jsonl"\n')
        assert read(tmp_path / "study.toml", tmp_path).cells
        return
    from_dict(tomllib.loads(text))


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


def test_the_step_is_quoted_as_it_is():
    page = (ROOT / "docs/architecture.md").read_text()
    shown = page.split("<!-- training/step.py, from step to sync -->\n```text\n")[1].split("\n```")[0]
    source = (ROOT / "src/gspo/training/step.py").read_text()
    assert shown == source[source.index("def step(") : source.index("def log(")].rstrip()
    assert len(shown.splitlines()) <= 60


def test_layers_are_those_of_the_import_rules():
    page = (ROOT / "docs/architecture.md").read_text()
    shown = page.split("<!-- layers, as in pyproject.toml -->\n```text\n")[1].split("\n```")[0].splitlines()
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert shown == contracts[0]["layers"]
