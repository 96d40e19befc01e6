"""Adapters that vLLM serves as such, and merged where it cannot."""

import json

import pytest

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.backends.vllm.errors import EngineError
from gspo.learner.weights import PolicyWeights
from tests.backends.vllm.engine.servers import ENGINE_ARGS, MODELS, PYTHON, adapted_policy, change_adapters, gaps, served
from tests.tiny_run import PIECES, ROWS, likes_a, settings

EXPERTS = {"targets": ("all-linear", "experts")}
FEW = {"quantize": "nf4"}  # bits a weight


@pytest.mark.parametrize(
    ("name", "as_adapter", "options"),
    [
        ("dense", True, FEW),
        ("moe", False, EXPERTS | FEW),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [("dense", True, {}), ("moe", False, {}), ("moe", False, EXPERTS)]
        ),
    ],
)
def test_three_updates_of_an_adapter(name, as_adapter, options):
    policy = adapted_policy(name, **options)
    with served(policy, rank=4) as sampler:
        assert sampler.server.adapters == as_adapter
        for version in range(1, 4):
            change_adapters(policy, 0.05, version)
            stale = float(gaps(sampler, policy, version).mean())
            sampler.load(PolicyWeights(policy, version))
            gap = gaps(sampler, policy, version)
            print(json.dumps({"model": name, "stale": stale, "mean": float(gap.mean()), "max": float(gap.max())}))
            assert stale > 1e-3 and float(gap.mean()) < 1e-5 and float(gap.max()) < 2e-4  # an unlikely token rounds more
        change_adapters(policy, 0.3, 9)  # the engine is not told
        with pytest.raises(EngineError, match="disagree about version 3"):
            sampler.check(PolicyWeights(policy, sampler.version))


@pytest.mark.slow
def test_a_run_on_experts_of_few_bits_logs_how_far_the_engine_is_from_the_trainer(tmp_path):
    build_tiny(MODELS["moe"], longest_match_tokenizer(PIECES)).save(tmp_path / "model")
    config = settings(
        tmp_path / "run", model={"path": str(tmp_path / "model"), **FEW}, lora={"rank": 4, "targets": [*EXPERTS["targets"]]},
        sampler={"engine": "vllm", "python": PYTHON, "engine_args": ENGINE_ARGS}, train={"steps": 4}, eval={"every": 0},
    )  # fmt: skip
    folder = gspo.train(None, ROWS, likes_a, config=config).folder
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    print([line["mismatch/kl"] for line in steps])
    assert len(steps) == 4 and all(abs(line["mismatch/kl"]) < 1e-7 for line in steps)


@pytest.mark.slow
def test_a_run_with_adapters_resumes(tmp_path):
    def train(steps, resume=False):
        tiny = build_tiny(MODELS["dense"], longest_match_tokenizer(PIECES))
        config = settings(
            tmp_path / "run", sampler={"engine": "vllm", "python": PYTHON, "engine_args": ENGINE_ARGS},
            lora={"rank": 4}, algorithm={"beta": 0.01}, train={"steps": steps}, eval={"every": 0},
        )  # fmt: skip
        return gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config, resume=resume)

    folder = train(3).folder
    train(5, resume=True)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5]
    assert all(line["mismatch/kl"] < 1e-8 for line in steps)
    assert steps[0]["kl_ref"] == 0 or steps[0]["kl_ref"] < steps[-1]["kl_ref"]
