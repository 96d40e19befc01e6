"""Adapters that vLLM serves as such, and merged where it cannot."""

import json

import pytest

from gspo.backends.vllm.errors import EngineError
from gspo.learner.weights import PolicyWeights
from tests.backends.vllm.engine.servers import adapted_policy, change, gaps, lines, served, train

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
            change(policy, 0.05, version)
            stale = float(gaps(sampler, policy, version).mean())
            sampler.load(PolicyWeights(policy, version))
            gap = gaps(sampler, policy, version)
            print(json.dumps({"model": name, "stale": stale, "mean": float(gap.mean()), "max": float(gap.max())}))
            assert stale > 1e-3 and float(gap.mean()) < 1e-5 and float(gap.max()) < 2e-4  # an unlikely token rounds more
        change(policy, 0.3, 9)  # the engine is not told
        with pytest.raises(EngineError, match="disagree about version 3"):
            sampler.check(PolicyWeights(policy, sampler.version))


def test_an_adapter_is_read_only_when_it_is_loaded():
    """Its folder may go away, or hold the next weights, while completions are sampled."""
    policy = adapted_policy("dense")
    with served(policy, rank=4) as sampler:
        (sampler.weight_dir / "weights").rename(sampler.weight_dir / "away")
        assert sampler.server.adapters and float(gaps(sampler, policy, 1).mean()) < 1e-5


@pytest.mark.slow
def test_a_run_with_adapters_resumes(tmp_path):
    sections = {"lora": {"rank": 4}, "algorithm": {"beta": 0.01}, "eval": {"every": 0}}
    train(tmp_path / "run", "dense", train={"steps": 3}, **sections)
    steps = lines(train(tmp_path / "run", "dense", resume=True, train={"steps": 5}, **sections).folder)
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5]
    assert all(line["mismatch/kl"] < 1e-8 for line in steps)
    assert steps[0]["kl_ref"] == 0 or steps[0]["kl_ref"] < steps[-1]["kl_ref"]
