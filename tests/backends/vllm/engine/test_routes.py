"""Which experts vLLM's routers chose, and their replay (R3)."""

import json

import pytest
import torch

from gspo.learner import layout
from gspo.learner.weights import PolicyWeights
from gspo.objective.routing import changed
from gspo.types import Completion, Prompt, Sampling
from tests.backends.vllm.engine.servers import (
    ENGINE,
    ENGINE_ARGS,
    change,
    interrupt,
    lines,
    policy_of,
    prompts,
    served,
    train,
)


def chosen(policy, rollouts):
    """The experts that the trainer's routers choose for the same tokens, a tensor a completion."""
    batch = layout.build([Completion(r.tokens, r.sampled, r.logp[r.sampled], r.logp[r.sampled], 0.0) for r in rollouts])
    with torch.no_grad():
        own = policy.forward(batch, routing=True).routing.own
    return own[batch.path].split([len(r.tokens) for r in rollouts])


@pytest.fixture(scope="module")
def moe_server():
    policy = policy_of("moe")
    arguments = ENGINE_ARGS | {"enable_return_routed_experts": True}
    with served(policy, engine_args=arguments, batch_size=4) as sampler:  # few at once, so that updates meet many of them
        yield policy, sampler


def test_the_routes_are_the_trainers(moe_server):
    """With shared prompts (vLLM's prefix cache) as without, and after a weight update."""
    policy, sampler = moe_server
    for version in range(1, 4):
        change(policy.model.model, 0.02, version)
        sampler.load(PolicyWeights(policy, version))
        long = [Prompt(p.id, "", p.tokens * 5) for p in prompts()]  # more than a block of the cache
        rollouts = sampler.generate([*prompts(), *long], 6, Sampling(24, 1.0, seed=version, stop_ids=(1,), routes=True))
        shares = [changed(r.routes, own)[:-1] for r, own in zip(rollouts, chosen(policy, rollouts))]
        assert all(bool((r.routes[-1] == -1).all() and (r.routes[:-1] >= 0).all()) for r in rollouts)
        assert float(torch.cat(shares).mean()) < 1e-3


def test_interrupted_completions_hold_the_experts_of_the_weights_of_their_time(moe_server):
    policy, sampler = moe_server
    rollouts, models = interrupt(sampler, policy, 0.03, routes=True)
    changes = {}
    for v, weights in models.items():
        policy.model.model.load_state_dict(weights)
        for r, own in zip(rollouts, chosen(policy, rollouts)):
            for version in models:  # by the version of the token that each was read for
                at = (r.version[1:] == version).nonzero()[:, 0]
                changes.setdefault((v, version), []).append(changed(r.routes[at], own[at]))
    share = {key: float(torch.cat(each).mean()) for key, each in changes.items()}  # nan where there are no such tokens
    print(json.dumps({f"weights {v}, tokens of {o}": round(x, 4) for (v, o), x in share.items()}))
    assert all(share[v, v] < 1e-3 for v in models if sum(map(len, changes[v, v])))
    assert min(share[v, o] for v, o in changes if v != o and sum(map(len, changes[v, o]))) > 0.01


@pytest.mark.slow
def test_a_run_replays_them(tmp_path):
    sections = {"train": {"steps": 3}, "algorithm": {"router_replay": "R3"}, "eval": {"every": 0}}
    steps = lines(train(tmp_path / "run", **sections).folder)
    assert len(steps) == 3
    for line in steps:
        assert line["moe/volatility"] == 0 and line["moe/sampler_agreement"] > 0.999 and line["mismatch/kl"] < 1e-8


def test_an_engine_that_does_not_tell_is_refused_for_R3(tmp_path):
    silent = ENGINE | {"engine_args": ENGINE_ARGS | {"enable_return_routed_experts": False}}
    with pytest.raises(ValueError, match=r"R3.*does not report which experts.*enable-return-routed-experts"):
        train(tmp_path / "run", sampler=silent, algorithm={"router_replay": "R3"})
