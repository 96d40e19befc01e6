"""The check of an engine's weights, on probes of a mixture whose experts the engine tells."""

import copy
import dataclasses
import math

import pytest
import torch

from gspo.backends.hf import routing
from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.backends.vllm.weight_check import LIMITS, OTHER, WORSE, Check, Gap, compare, precision_of, repeated
from gspo.config.files import docs
from gspo.config.policy import ModelConfig
from gspo.config.rollout import SamplerConfig
from gspo.demo import count_bits
from gspo.learner import layout
from gspo.learner.weights import PolicyWeights
from gspo.rollout.credit import completion_of
from gspo.types import Sampling


@pytest.fixture(scope="module")
def probed():
    """A policy, and completions that it sampled with its experts."""
    tiny = build_tiny(
        tiny_qwen3_moe(hidden=32, layers=3, experts=8, expert_width=32), longest_match_tokenizer(count_bits.PIECES)
    )
    with torch.no_grad():
        for name, weight in tiny.model.named_parameters():
            weight.mul_(6.0 if "experts" in name else 1.0)  # so that it matters which are taken
    model = wrap_model(tiny.model, tiny.tokenizer, ModelConfig(device="cpu"))
    check = Check("float32", model.config.vocab_size)
    probes = HFSampler(model).generate(check.prompts(1, 0), 1, Sampling(16, seed=1, routes=True))
    return HFPolicy(model), check, probes


def tied(policy, probes):
    """The completions of an engine that, for a prompt token of the first, took the third expert for the second."""
    routes = probes[0].routes.clone()
    chosen = set(routes[2, 0].tolist())
    routes[2, 0, 1] = next(e for e in range(8) if e not in chosen)
    first = dataclasses.replace(probes[0], routes=routes)
    with torch.no_grad():
        logp = policy.forward(layout.build([completion_of(first, 0.0)]), replay=True).logp
    mu = first.logp.clone()
    mu[first.sampled] = logp
    return [dataclasses.replace(first, logp=mu), *probes[1:]]


def test_a_tie_that_the_engine_decided_otherwise_is_no_other_weight(probed):
    policy, check, probes = probed
    with_tie = tied(policy, probes)
    (result,) = compare(PolicyWeights(policy, 1), [with_tie])
    assert result.mean < 1e-6 and 0 < result.other < OTHER and check.accepts(result)
    (blind,) = compare(PolicyWeights(policy, 1), [[dataclasses.replace(probe, routes=None) for probe in with_tie]])
    assert blind.mean > 1e-4 and blind.other == 0  # which is why the experts are asked for, and other prompts tried


def test_other_weights_are_seen_through_the_engines_experts(probed):
    policy, check, probes = probed
    before = copy.deepcopy(policy.model.model.state_dict())
    for part in ("experts.down_proj", "q_proj", "embed_tokens"):
        with torch.no_grad():
            for name, weight in policy.model.model.named_parameters():
                if part in name:
                    weight.add_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
        assert not check.accepts(*compare(PolicyWeights(policy, 1), [probes])), part
        policy.model.model.load_state_dict(before)
    with torch.no_grad():
        for router in routing.routers(policy.model.model):
            router.weight.copy_(router.weight.flip(0))
    assert compare(PolicyWeights(policy, 1), [probes])[0].other > OTHER
    policy.model.model.load_state_dict(before)
    assert check.accepts(*compare(PolicyWeights(policy, 1), [probes]))


def test_each_engine_is_compared_by_itself(probed):
    """Though all their probes are read together."""
    policy, _, probes = probed
    off = [dataclasses.replace(probe, logp=probe.logp - 0.1) for probe in probes]
    good, bad, again = compare(PolicyWeights(policy, 1), [probes, off, probes])
    assert good.mean == pytest.approx(again.mean, abs=1e-6) and good.tokens == again.tokens  # rounding, by place in a batch
    assert good.mean < 1e-6 and good.tokens == 64 and bad.mean == pytest.approx(0.1, abs=1e-5)


def test_what_two_engines_sample_with_the_same_seeds(probed):
    _, _, probes = probed
    assert repeated(probes, probes) == 0
    off = [dataclasses.replace(probe, logp=probe.logp - 0.1) for probe in probes]
    assert repeated(off, probes) == pytest.approx(0.1, abs=1e-6)
    parted = [parts_at(probe, 12) for probe in probes]  # what comes after is the likelihood of other tokens
    assert repeated(parted, probes) == 0
    assert repeated([parts_at(probe, 2) for probe in probes], probes) == math.inf


def parts_at(probe, place):
    """The probe with another token, and other likelihoods from there on, after `place` sampled ones."""
    at = len(probe.prompt.tokens) + place
    tokens, logp = probe.tokens.clone(), probe.logp.clone()
    tokens[at] = (tokens[at] + 1) % 20
    logp[at:] -= 1.0
    return dataclasses.replace(probe, tokens=tokens, logp=logp)


@pytest.mark.parametrize(
    ("given", "precision"),
    [
        ({}, "bfloat16"),
        ({"quantization": "fp8_per_channel"}, "fp8"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "int8"),
        ({"quantization": "int8_per_channel_weight_only", "kv_cache_dtype": "fp8"}, "fp8"),
    ],
)
def test_the_limit_follows_from_the_lowest_precision(given, precision):
    sampler = SamplerConfig(**given)
    assert precision_of(sampler, torch.bfloat16) == precision
    check = Check(precision, 20)
    fine, wrong = LIMITS[precision]
    assert f"{precision} {wrong:g}" in " ".join(docs(SamplerConfig)["weight_check_limit"].replace(",", "").split())
    assert check.limit == wrong and not check.accepts(Gap(1.01 * wrong, 64, 0.0))
    assert check.accepts(Gap(fine / 100, 64, 0.0)) and check.limit == fine  # never closer than that
    assert check.accepts(Gap(fine, 64, 0.0)) and check.limit == min(wrong, WORSE * fine)


def test_a_limit_of_ones_own():
    check = Check("bfloat16", 20, 0.01)
    assert check.limit == 0.01 and check.accepts(Gap(0.009, 64, 0.0)) and check.limit == 0.01
    assert not check.accepts(Gap(0.02, 64, 0.0))


def test_each_round_and_version_has_prompts_of_its_own(probed):
    _, check, _ = probed
    prompts = {prompt.tokens for version in range(3) for number in range(3) for prompt in check.prompts(version, number)}
    assert len(prompts) == 36
