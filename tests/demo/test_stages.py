"""Whole demos, with few steps: what they print, and going on."""

import re
import string

import pytest

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.demo import smollm2, stages

FEWER = {
    "steps": 2, "size": 400, "batch_size": 8, "every": 1, "num_prompts": 8, "num_generations": 4,
    "save_every": 1, "warmup": 1,
}  # fmt: skip


@pytest.fixture
def short(tmp_path, monkeypatch):
    """The demos' own configurations with small numbers."""
    for path in (*stages.HERE.glob("*.toml"), stages.HERE / stages.DEMOS["sums"].file):
        text = path.read_text()
        for name, value in FEWER.items():
            text = re.sub(rf"\b{name} = \d+", f"{name} = {value}", text)
        place = tmp_path / path.relative_to(stages.HERE.parent)
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    monkeypatch.setattr(stages, "HERE", tmp_path / "demo")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """In place of SmolLM2, which tests/real trains."""
    folder = tmp_path_factory.mktemp("model")
    build_tiny(tiny_qwen3_moe(hidden=16, context=256), longest_match_tokenizer(string.printable)).save(folder)
    return folder


@pytest.mark.parametrize("kind", stages.DEMOS)
def test_a_demo_from_start_to_end(kind, short, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(smollm2, "fetch_smollm2", lambda show: model)
    folder = tmp_path / "runs"
    assert stages.run_demo(folder, seed=1, kind=kind) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Held-out accuracy [\d.]+% \(.*\) -> [\d.]+% \(.*\), 8 questions never trained on", printed)
    for name, _ in stages.DEMOS[kind].watched.values():
        assert re.search(rf"{name} +-?[\d.]+%? -> -?[\d.]+%?", printed)
    assert "A held-out question:" in printed and "Before:" in printed and (folder / "report.html").exists()
    way = "--resume" if kind == "sums" else f"--{kind} --resume"
    with pytest.raises(ValueError, match=f"exists: give another --dir, or go on with a stopped demo by {way}"):
        stages.run_demo(folder, kind=kind)
