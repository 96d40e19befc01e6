"""The sampler with rounded weights."""

import copy
import dataclasses

import torch
from dials import Dialled, quantized

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.learner.weights import PolicyWeights
from gspo.types import Sampling
from tests.backends.hf.families import prompts, tiny


def test_the_grid_by_hand():
    weight = torch.tensor([[0.7, -0.33, 0.04, 0.0], [7.0, 1.4, -1.6, -7.0]])
    assert torch.allclose(quantized(weight, "int4"), torch.tensor([[0.7, -0.3, 0.0, 0.0], [7.0, 1.0, -2.0, -7.0]]))
    assert torch.equal(quantized(torch.zeros(2, 3), "int4"), torch.zeros(2, 3))


def test_floats_keep_their_digits():
    """bf16 has 8 bits of mantissa, e4m3 has 4, from 2^-6 of 448 on: the relative error is half of the last one."""
    weight = torch.randn(3, 4000).clamp(min=0.1) * torch.tensor([[1e-6], [1.0], [1e6]])
    for kind, digits in {"bf16": 8, "fp8": 4}.items():
        error = ((quantized(weight, kind) - weight) / weight).abs()
        assert 0.9 * 2.0**-digits < error.max() <= 2.0**-digits
    assert quantized(torch.tensor([[1.0, -448.0, 0.3]]), "fp8").tolist() == [[1.0, -448.0, 0.3125]]
    assert quantized(torch.tensor([[1.0, -448.0, 0.3]]), "bf16").tolist() == [[1.0, -448.0, 0.30078125]]
    assert torch.equal(quantized(torch.zeros(2, 3), "fp8"), torch.zeros(2, 3))


def test_it_samples_from_the_rounded_weights_and_leaves_the_policy_alone():
    model = tiny("qwen3_moe")
    weights = copy.deepcopy(model.model.state_dict())
    own = dataclasses.replace(model, model=copy.deepcopy(model.model))
    sampler = Dialled(HFSampler(own), "int4", 0)
    sampler.load(PolicyWeights(HFPolicy(model), 3))
    rollout = sampler.generate(prompts(5), 1, Sampling(max_new_tokens=12))[0]
    assert set(rollout.version[rollout.sampled].tolist()) == {3}
    assert all(torch.equal(value, weights[name]) for name, value in model.model.state_dict().items())

    def score(at):
        with torch.no_grad():
            logp = at.logits(at.hidden(input_ids=rollout.tokens[None])[0, :-1]).log_softmax(-1)
        return logp.gather(1, rollout.tokens[1:, None])[:, 0][rollout.sampled[1:]]

    gap = [(score(at) - rollout.logp[rollout.sampled]).abs().max() for at in (own, model)]
    assert gap[0] < 1e-5 < 1e-3 < gap[1]


def test_a_lag_samples_with_old_weights_and_shows_the_newest():
    model = tiny("qwen3_moe")
    sampler = Dialled(HFSampler(dataclasses.replace(model, model=copy.deepcopy(model.model))), "none", 2)
    exact, policy, sampling = HFSampler(model), HFPolicy(model), Sampling(max_new_tokens=6)
    texts = []
    for version in range(5):
        with torch.no_grad():
            for p in model.model.parameters():
                p.mul_(1.2)
        texts.append(exact.generate(prompts(5), 2, sampling)[0].tokens.tolist())
        sampler.load(PolicyWeights(policy, version))
        old = max(0, version - 2)
        (found, _) = sampler.generate(prompts(5), 2, sampling)
        assert sampler.version == version and int(found.version.max()) == old and found.tokens.tolist() == texts[old]
        assert [(int(r.version.max()), r.tokens.tolist()) for r in sampler.probes[:1]] == [(version, texts[-1])] * (
            version > 0
        )
    assert texts[-1] != texts[0]
    sampler.load(PolicyWeights(policy, 9))  # a resumed run
    assert not sampler.probes and int(sampler.generate(prompts(5), 1, sampling)[0].version.max()) == 9
