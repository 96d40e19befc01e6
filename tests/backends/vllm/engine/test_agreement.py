"""vLLM's likelihoods are the trainer's, at each of its weight updates, and what is no longer so is found out."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.server import Swap
from gspo.backends.vllm.transfer import WEIGHTS
from gspo.learner.weights import PolicyWeights
from gspo.types import Prompt, Sampling
from tests.backends.vllm.engine.servers import change, gaps, policy_of, prompts, served, tokens


@pytest.mark.parametrize(
    ("name", "dtype", "limit", "ties"),
    [
        ("dense", "float32", 1e-5, 0),
        pytest.param("moe, untied", "float32", 1e-5, 0, marks=pytest.mark.slow),
        pytest.param("moe", "bfloat16", 0.1, 0.02, marks=pytest.mark.slow),
        pytest.param("dense", "bfloat16", 0.1, 0, marks=pytest.mark.slow),
    ],
)
def test_five_weight_updates(name, dtype, limit, ties):
    """ties: the share of tokens whose routers may be so near a tie that rounding sends them to other experts."""
    policy = policy_of(name, dtype)
    with served(policy) as sampler:
        five_weight_updates(policy, sampler, limit, ties)


def five_weight_updates(policy, sampler, limit, ties):
    first = sampler.version
    by_version = [gaps(sampler, policy, first)]
    for version in range(first + 1, first + 6):
        change(policy.model.model, 0.05, version)
        stale = float(gaps(sampler, policy, version).mean())
        sampler.load(PolicyWeights(policy, version))
        by_version.append(gaps(sampler, policy, version))
        assert stale > 5 * float(by_version[-1].mean()), "the change is too small to tell old weights from new"
    for version, gap in enumerate(by_version):
        print(json.dumps({"version": version, "mean": float(gap.mean()), "max": float(gap.max())}))
        assert float(gap.mean()) < limit / 4 and float((gap >= 4 * limit).float().mean()) <= ties


@pytest.fixture(scope="module")
def mixture():
    policy = policy_of("moe")
    with served(policy) as sampler:
        yield policy, sampler


def test_stale_weights_are_found_out(mixture):
    policy, sampler = mixture
    sampler.load(PolicyWeights(policy, 1))
    change(policy.model.model, 0.02, 1)  # the engine is not told
    with pytest.raises(EngineError, match=r"disagree about version 1.*stale or corrupt"):
        sampler.check(PolicyWeights(policy, sampler.version))
    sampler.load(PolicyWeights(policy, 2))


def test_corrupt_weights_are_found_out(mixture):
    """One expert of one layer, garbled between the trainer and the engine."""
    policy, sampler = mixture
    sampler.load(PolicyWeights(policy, 3))
    file = sampler.weight_dir / WEIGHTS / "model.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if "experts.1.down_proj" in name)
    weights[name] = weights[name].flip(0).contiguous()
    save_file(weights, file, metadata={"format": "pt"})
    sampler.server.swap(Swap(3, sampler.weight_dir / WEIGHTS))
    with pytest.raises(EngineError, match="disagree about version 3"):
        sampler.check(PolicyWeights(policy, sampler.version))
    sampler.load(PolicyWeights(policy, 4))


def test_a_server_that_went_back_to_its_first_weights_is_found_out(mixture):
    """As after a restart by somebody else: its version label is another. It gets the weights of now, and is asked again."""
    policy, sampler = mixture
    sampler.load(PolicyWeights(policy, 5))
    sampler.server.call("/update_weight_version", {"new_version": "default"})
    sampler.server.command, command = None, sampler.server.command
    rollouts = sampler.generate(prompts(), 1, Sampling(4))
    assert "version ['default'] of the weights where 5 was loaded" in sampler.said[-2]
    assert all(set(r.version[r.sampled].tolist()) == {5} for r in rollouts)
    sampler.server.command = command
    sampler.load(PolicyWeights(policy, 6))


def test_the_same_seed_gives_the_same_completions(mixture):
    policy, sampler = mixture
    a, b, c = (sampler.generate(prompts(), 3, Sampling(16, seed=seed, stop_ids=(1,))) for seed in (1, 1, 2))
    assert tokens(a) == tokens(b) != tokens(c)
    assert len({tuple(r.tokens.tolist()) for r in a}) > 9, "the completions to a prompt are drawn apart"


def test_completions_end_as_those_of_the_embedded_sampler(mixture):
    policy, sampler = mixture
    counts = []
    rollouts = sampler.generate(prompts(), 16, Sampling(40, seed=3, stop_ids=(1,), stop=("ab",)), counts.append)
    assert counts == [*range(1, 65)] and {r.stop for r in rollouts} >= {"eos", "stop"}
    for r in rollouts:
        y = r.tokens[r.sampled].tolist()
        assert r.prompt.tokens == tuple(r.tokens[~r.sampled].tolist()) and 1 <= len(y) <= 40
        assert (y[-1] == 1) == (r.stop == "eos") and 1 not in y[:-1]
        assert r.text.endswith("ab") == (r.stop == "stop") and "ab" not in r.text[:-2]
        assert len(y) == 40 or r.stop != "length"
        assert set(r.version.tolist()) == {-1, sampler.version} and (r.logp[r.sampled] < 0).all()


def test_greedy_completions_are_the_likeliest_tokens(mixture):
    policy, sampler = mixture
    for r in sampler.generate(prompts(2), 1, Sampling(8, temperature=0.0)):
        with torch.no_grad():
            logits = policy.model.model(r.tokens[None]).logits[0]
        assert r.tokens[r.sampled].tolist() == logits.argmax(-1)[len(r.prompt.tokens) - 1 : -1].tolist()
        assert (r.logp == 0).all()


def test_prompts_that_are_read_in_parts_keep_their_seeds(mixture):
    """More tokens than the engine reads at once: it dies of it where this is not mended."""
    _, sampler = mixture
    before = len(sampler.said)
    long = [Prompt(str(i), "", tuple(2 + (i * j) % 12 for j in range(1, 121))) for i in range(1, 151)]
    a, b = (sampler.generate(long, 1, Sampling(4, seed=5)) for _ in range(2))
    assert tokens(a) == tokens(b)
    alone = sampler.generate(long[:3], 1, Sampling(4, seed=5))
    assert tokens(alone) == tokens(a[:3])
    assert len(sampler.said) == before


def test_five_weight_updates_of_the_mixture(mixture):  # last: it sharpens what the tests above sample from
    five_weight_updates(*mixture, 1e-5, 0)
