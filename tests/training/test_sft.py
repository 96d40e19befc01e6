"""Supervised runs."""

import gspo
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
