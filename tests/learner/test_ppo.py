"""PPO's critic, in whole runs."""

import math
from dataclasses import replace

import pytest
import torch

from gspo.backends.hf.critic import Critic
from gspo.backends.hf.policy import HFPolicy
from gspo.learner import layout
from gspo.learner.learner import PolicyLearner
from gspo.learner.memory import MicroBatches
from gspo.types import Completion
from tests.learner.cases import objective_of, optimizer_of
from tests.tiny_run import dials, model
from tests.training.whole import lines, numbers, train

PPO = {"algorithm": {"name": "ppo"}, "eval": {"every": 0}}


def completions():
    draw = torch.Generator().manual_seed(0)
    return [
        Completion(tokens, torch.arange(len(tokens)) >= 3, logp, logp, 0.0, reward=float(i % 2))
        for i in range(6)
        for tokens, logp in [(torch.randint(2, 12, (4 + i,), generator=draw), torch.zeros(1 + i))]
    ]


def learner(trunk, scale="none", **constants):
    tiny = model()
    policy = HFPolicy(tiny, critic=Critic(tiny, trunk))
    objective = objective_of("ppo", critic=trunk, constants=constants)
    return PolicyLearner(policy, optimizer_of(policy, lr=1e-2), objective, MicroBatches(1000), scale=scale)


@pytest.mark.parametrize("trunk", ["shared", pytest.param("copy", marks=pytest.mark.slow)])
def test_the_critic_learns_the_returns(trunk):
    made = learner(trunk, e_value=100.0, c_value=1.0)
    found = []
    for _ in range(60):
        made.prepare([completions()], recompute=False)
        (old,) = made.mini_batches
        made.take([[replace(r, advantage=0 * r.advantage, returns=r.reward + 0 * r.returns) for r in old]])
        found.append(made.update(0).metrics)
    assert found[-1]["value/loss"] < 0.05 * found[0]["value/loss"] and found[-1]["value/explained"] > 0.8


def test_equal_returns_leave_nothing_to_explain():
    made = learner("shared", lam=1.0)
    made.prepare([[replace(each, reward=1.0) for each in completions()]], recompute=False)
    assert math.isnan(made.update(0).metrics["value/explained"])


def test_a_new_head_says_zero_and_a_copy_leaves_the_policy_alone():
    made = learner("copy")
    batch = layout.build(completions())
    assert not made.policy.forward(batch).values.any()
    torch.nn.init.normal_(made.policy.critic.head.weight)
    values = made.policy.forward(batch).values
    values.sum().backward()
    assert all(p.grad is None for p in made.policy.model.model.parameters())
    assert any(p.grad is not None and p.grad.any() for p in made.policy.critic.body.parameters())
    shared = learner("shared").policy
    torch.nn.init.normal_(shared.critic.head.weight)
    shared.forward(batch).values.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in shared.model.body.parameters())


def test_values_do_not_depend_on_the_layout():
    tiny = model()
    critic = Critic(tiny, "copy")
    torch.nn.init.normal_(critic.head.weight)
    batch = layout.build(completions(), share=True)
    a, b = (HFPolicy(tiny, layout=way, critic=critic).forward(batch).values for way in ("padded", "shared"))
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradient_checkpointing_holds_for_a_critic_of_its_own():
    made, found = model(), []
    batch = layout.build([Completion(torch.arange(2, 9), torch.arange(7) >= 3, torch.zeros(4), torch.zeros(4), 1.0)])
    for checkpointing in (False, True):
        critic = Critic(made, "copy")
        torch.nn.init.ones_(critic.head.weight)
        policy = HFPolicy(made, critic=critic, gradient_checkpointing=checkpointing)
        policy.forward(batch).values.sum().backward()
        found.append([p.grad for p in critic.body.parameters()])
        assert critic.own.model.is_gradient_checkpointing == checkpointing
    for one, other in zip(*found):
        torch.testing.assert_close(one, other)


def test_advantages_are_gae_of_the_old_critic():
    made = learner("shared")
    made.prepare([completions()], recompute=False)
    for completion in made.mini_batches[0]:  # V = 0: A_t = lam^(tokens left) r
        want = [completion.reward * 0.95**left for left in reversed(range(len(completion.logp_old)))]
        assert completion.advantage.tolist() == pytest.approx(want)
    whitened = learner("shared", scale="batch")
    whitened.prepare([completions()], recompute=False)
    flat = torch.cat([completion.advantage for completion in whitened.mini_batches[0]])
    assert float(flat.mean()) == pytest.approx(0, abs=1e-5) and float(flat.std()) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("trunk", ["shared", pytest.param("copy", marks=pytest.mark.slow)])
def test_ppo_learns_and_resumes_bit_for_bit(tmp_path, trunk):
    options = PPO | {"algorithm": {"name": "ppo", "critic": trunk}}
    whole = train(tmp_path / "whole", train={"steps": 12}, **options)
    found = numbers(whole.folder)
    assert sum(m["reward"] for m in found[-3:]) > sum(m["reward"] for m in found[:3]) + 0.3
    train(tmp_path / "part", train={"steps": 5, "save_every": 5}, **options)
    again = train(tmp_path / "part", train={"steps": 12}, resume=True, **options)
    assert numbers(again.folder) == found


def test_the_sampler_gets_the_weights_and_not_the_critic(tmp_path):
    run = train(tmp_path / "run", train={"steps": 2}, sampler=dials(kind="int8"), **PPO)
    assert [r["version"] for r in lines(run.folder / "rollouts.jsonl")][:: 8 * 4] == [0, 1]
    assert not any("critic" in name for name in run.model.state_dict())
