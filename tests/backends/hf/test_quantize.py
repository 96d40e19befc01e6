"""The sampler with rounded weights."""

import copy
import dataclasses

import pytest
import torch

from gspo.backends.hf import routing
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.quantize import coarse, round_weights, rounded
from gspo.backends.hf.sampler import HFSampler
from gspo.learner.weights import PolicyWeights
from gspo.types import Sampling
from tests.backends.hf.families import prompts, tiny


def test_the_grid_by_hand():
    weight = torch.tensor([[0.7, -0.33, 0.04, 0.0], [7.0, 1.4, -1.6, -7.0]])
    assert torch.allclose(rounded(weight, 4), torch.tensor([[0.7, -0.3, 0.0, 0.0], [7.0, 1.0, -2.0, -7.0]]))
    assert torch.equal(rounded(torch.zeros(2, 3), 4), torch.zeros(2, 3))


@pytest.mark.parametrize(("bits", "values"), [(4, 15), (8, 255)])
def test_each_output_channel_has_its_own_grid(bits, values):
    weight = torch.randn(3, 5, 4000)  # experts, out, in
    coarse = rounded(weight, bits)
    assert max(len(row.unique()) for row in coarse.flatten(0, 1)) <= values
    step = weight.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((coarse - weight).abs() <= step / 2 + 1e-6).all()
    assert torch.allclose(rounded(coarse, bits), coarse)  # what stands on the grid stays


def test_embeddings_routers_and_norms_are_left_alone():
    model = tiny("qwen3_moe").model
    before = copy.deepcopy(dict(model.named_parameters()))
    round_weights(model, 4)
    same = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert {name for name in before if "embed" in name or "norm" in name or "mlp.gate." in name} == same
    assert len(list(coarse(model))) == len(before) - len(same)
    assert routing.routers(model)


def test_it_samples_from_the_rounded_weights_and_leaves_the_policy_alone():
    model = tiny("qwen3_moe")
    weights = copy.deepcopy(model.model.state_dict())
    own = dataclasses.replace(model, model=copy.deepcopy(model.model))
    sampler = HFSampler(own, quantize="int4")
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


def test_the_policys_own_model_is_never_rounded():
    model = tiny("qwen3_moe")
    with pytest.raises(ValueError, match="model of its own"):
        HFSampler(model, quantize="int8").load(PolicyWeights(HFPolicy(model), 0))
