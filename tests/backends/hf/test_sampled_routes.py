import dataclasses

import pytest
import torch

from gspo.backends.hf import routing
from gspo.backends.hf.sampler import HFSampler
from gspo.objective.routing import changed
from gspo.types import Sampling
from tests.backends.hf.families import prompts, tiny


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe"])
def test_routes_are_those_of_a_plain_forward_pass(family):
    model = tiny(family)
    sampling = Sampling(max_new_tokens=20, stop_ids=(1, 5, 6), seed=3, routes=True)
    rollouts = HFSampler(model, batch_size=7).generate(prompts(3, 11, 7, 7, 25), 3, sampling)
    assert len({len(rollout.tokens) for rollout in rollouts}) > 3
    for rollout in rollouts:
        with torch.no_grad(), routing.record(model.model) as record:
            model.hidden(input_ids=rollout.tokens[None])
            plain = record.take().transpose(0, 1)
        assert rollout.routes.dtype == torch.int16 and rollout.routes.shape == plain.shape
        assert (rollout.routes[-1] == -1).all()  # never read
        assert not changed(rollout.routes[:-1], plain[:-1]).any()


def test_routes_are_kept_only_where_asked_for_and_only_of_experts():
    sampling = Sampling(max_new_tokens=4, routes=True)
    assert HFSampler(tiny("qwen3")).generate(prompts(3), 2, sampling)[0].routes is None
    plain = HFSampler(tiny("qwen3_moe")).generate(prompts(3), 2, dataclasses.replace(sampling, routes=False))[0]
    assert plain.routes is None
    short = HFSampler(tiny("qwen3_moe")).generate(prompts(3), 2, dataclasses.replace(sampling, max_new_tokens=1))[0]
    assert short.routes.shape == (4, 2, 2) and (short.routes[:3] >= 0).all()
