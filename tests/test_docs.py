"""What the documentation says: its Python runs, and its settings are valid."""

import re
import tomllib
from pathlib import Path

import pytest

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.compare.spec import read
from gspo.config.commands import check_command
from gspo.config.files import from_dict
from gspo.report.read import read_lines

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = "<!-- not run -->"
FENCE = re.compile(rf"({re.escape(NOT_RUN)}\n+)?^```(\w*)\n(.*?)^```$", re.S | re.M)
# The runs of the documentation, made small.
SMALL = {"steps": 1, "num_prompts": 4, "max_completion_length": 8}


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
    code = code.replace("path/to/model", str(model_folder)).replace("gspo.fetch_smollm2()", repr(str(model_folder)))
    for key, small in SMALL.items():
        code = re.sub(rf'("{key}"): \d+', rf"\1: {small}", code)
    exec(compile(code, "documentation", "exec"), {"__name__": "documentation"})
    for path in tmp_path.rglob("metrics.jsonl"):
        steps = list(read_lines(path))
        assert {re.sub(r"(reward(?:_min|_max)?)/.*", r"\1/NAME", key) for line in steps for key in line} <= metrics()
        assert steps[-1]["step"] == 1 and not steps[-1]["rollouts/failed"]


def metrics():
    """The names in the first column of the table of metrics."""
    section = (ROOT / "docs/metrics.md").read_text()
    return {found for row in re.findall(r"^\| (`.*?) \|", section, re.M) for found in re.findall(r"`(.+?)`", row)}


@pytest.mark.parametrize("text", blocks("toml"))
def test_configuration_is_valid(text, tmp_path):
    if "[variants" in text:  # a study
        (tmp_path / "study.toml").write_text(text)
        (tmp_path / "my-run.toml").write_text('[model]\npath = "m"\n[task]\nsource = "t.jsonl"\n')
        assert read(tmp_path / "study.toml", tmp_path).cells
        return
    raw = tomllib.loads(text)
    raw["model"] = {"path": "m"} | raw.get("model", {})
    raw["task"] = {"source": "t.jsonl"} | raw.get("task", {})
    if not raw["task"].get("environment") and not raw["task"]["source"].startswith("verifiers:"):
        raw["reward"] = {"functions": ["exact"]} | raw.get("reward", {})
    try:
        check_command(from_dict(raw), "train")
    except ValueError as error:
        if not re.search(r" needs [\w-]+: (pip )?install", str(error)):  # a package that is not here
            raise
