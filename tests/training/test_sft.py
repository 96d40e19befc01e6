"""Supervised runs."""

from pathlib import Path

import torch

import gspo
from tests.runs.events import texts
from tests.tiny_run import model
from tests.training.whole import numbers


def test_cold_start_learns_and_resumes_bit_equal(tmp_path):
    rows = [{"prompt": f"{i}=", "completion": "ab" * (i % 3 + 1)} for i in range(10)]

    def fit(folder, steps, resume=False):
        tiny = model()
        return gspo.sft(
            tiny.model, rows, tokenizer=tiny.tokenizer, resume=resume, optimizer={"lr": 1e-2},
            train={"steps": steps, "batch_size": 5, "save_every": 10}, log={"dir": str(tmp_path / folder)},
        )  # fmt: skip

    whole = fit("whole", 40)
    losses = [m["loss"] for m in numbers(whole.folder)]
    assert losses[-1] < losses[0] / 4
    fit("parts", 20)
    fit("parts", 40, resume=True)
    assert numbers(tmp_path / "parts") == numbers(whole.folder)
    fit("parts", 40, resume=True)
    assert sum("all 40 steps are done already" in text for text in texts(tmp_path / "parts")) == 1


def test_a_full_disk_in_the_middle_is_warned_of(tmp_path, monkeypatch):
    plain = torch.save

    def save(state, path):
        if state.get("step") == 1:
            Path(path).symlink_to("/dev/full")
        plain(state, path)

    monkeypatch.setattr(torch, "save", save)
    tiny, rows = model(), [{"prompt": "1=", "completion": "ab"}] * 4
    run = gspo.sft(
        tiny.model, rows, tokenizer=tiny.tokenizer, train={"steps": 2, "batch_size": 2, "save_every": 1},
        log={"dir": str(tmp_path / "run")},
    )  # fmt: skip
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step_000002"]
    assert any("step_000001 could not be written" in text for text in texts(run.folder))
