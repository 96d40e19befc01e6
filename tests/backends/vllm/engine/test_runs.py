"""Whole runs that sample from vLLM."""

import json

import pytest

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from tests.backends.vllm.engine.servers import ENGINE_ARGS, MOE, PYTHON
from tests.tiny_run import PIECES, ROWS, likes_a, settings

ENGINE = {"engine": "vllm", "python": PYTHON, "engine_args": ENGINE_ARGS}


def train(folder, resume=False, **changes):
    tiny = build_tiny(MOE, longest_match_tokenizer(PIECES))
    config = settings(folder, sampler=ENGINE, **changes)
    return gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, resume=resume, config=config)


def test_a_run_learns_and_resumes(tmp_path):
    folder = train(tmp_path / "run", train={"steps": 8, "save_every": 4}).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 8 and steps[-1]["reward"] > steps[0]["reward"] + 0.1
    assert all(line["mismatch/kl"] < 1e-8 and line["ratio/noise_floor"] < 1e-5 and line["staleness"] == 0 for line in steps)
    assert all(0 < line["clip_ratio/tokens"] < 1 for line in steps)
    versions = {}
    for text in (folder / "rollouts.jsonl").read_text().splitlines():
        line = json.loads(text)
        versions.setdefault(line["step"], set()).add(line["version"])
    assert versions == {step: {step - 1} for step in range(1, 9)}
    assert (folder / "vllm.log").exists()
    more = train(tmp_path / "run", resume=True, train={"steps": 10})
    assert more.metrics["step"] == 10 and more.metrics["mismatch/kl"] < 1e-8


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"urls": ["http://127.0.0.1:9"]}, r"sampler.urls: .*nothing answers.*gspo_vllm.py"),
        ({"python": "/no/such/python"}, r"sampler.python = '/no/such/python'"),
        ({}, r"vLLM is not installed here: .*sampler.python"),
        ({"python": PYTHON, "engine_args": {"no_such_argument": 1}}, r"vLLM ended with status 2: .*no-such-argument"),
        ({"python": PYTHON, "exchange": "/no/such/folder"}, "sampler.exchange"),
    ],
)
def test_bad_input_is_refused_before_training(tmp_path, sampler, message):
    tiny = build_tiny(MOE, longest_match_tokenizer(PIECES))
    with pytest.raises((ValueError, RuntimeError), match=message):
        gspo.train(
            tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer,
            config=settings(tmp_path / "run", sampler={"engine": "vllm"} | sampler),
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
