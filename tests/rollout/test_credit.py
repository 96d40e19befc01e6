import math
from dataclasses import replace

import pytest
import torch

from gspo.config.policy import ResolvedAlgorithm
from gspo.objective.algorithms import ALGORITHMS
from gspo.rollout.credit import training_batch
from gspo.types import Group, Prompt, Rollout


def prompt(name="p"):
    return Prompt(name, "q", (1, 2))


def rollout(reward, stop="eos", n=3, who=None, error=None):
    tokens = torch.tensor([1, 2] + [5] * n)
    sampled = torch.arange(2 + n) >= 2
    logp = torch.where(sampled, -0.5, 0.0)
    version = torch.where(sampled, 4, -1)
    return Rollout(
        who or prompt(), tokens, sampled, logp, version, stop, reward=reward, reward_parts={"f": reward}, error=error
    )


def made(*groups, **changes):
    options = {"row": ALGORITHMS["gspo"], "algorithm": ResolvedAlgorithm(), "mask_truncated": False} | changes
    return training_batch([Group(prompt(str(i)), list(group)) for i, group in enumerate(groups)], **options)


def test_a_failed_reward_leaves_its_group_and_is_counted():
    out = made([rollout(0.8), rollout(0.4), rollout(None, error="hung"), rollout(0.6)])
    assert out.advantages[2] is None
    assert [a for a in out.advantages if a is not None] == pytest.approx([1, -1, 0])
    assert [len(group) for group in out.groups] == [3]
    assert out.counts["rollouts/failed"] == 1
    assert out.counts["reward"] == pytest.approx(0.6)


def test_a_group_with_fewer_than_two_rewards_is_dropped_and_counted():
    out = made([rollout(1.0), rollout(None), rollout(None)], [rollout(1.0), rollout(0.0)], [rollout(None)] * 2)
    assert len(out.groups) == 1
    assert out.counts["groups/dropped"] == 2
    assert out.advantages[0] is None


def test_every_group_may_fail():
    out = made([rollout(None), rollout(None)])
    assert out.groups == [] and out.counts["groups/dropped"] == 1
    assert math.isnan(out.counts["reward"])
    assert math.isnan(out.counts["frac_reward_zero_std"])  # "0 %" would say that all of them teach


def test_truncated_completions_train_unless_masked():
    group = [rollout(1.0), rollout(0.0, stop="length"), rollout(0.0), rollout(0.5)]
    assert len(made(group).groups[0]) == 4
    out = made(group, mask_truncated=True)
    assert out.advantages[1] is None
    assert [a for a in out.advantages if a is not None] == pytest.approx([1, -1, 0])
    assert out.counts["completions/clipped_ratio"] == 0.25


def test_equal_rewards_stay_in_the_denominator_of_gspo_and_leave_dapos():
    groups = [rollout(1.0), rollout(1.0)], [rollout(1.0), rollout(0.0)]
    assert [len(g) for g in made(*groups).groups] == [2, 2]
    assert [len(g) for g in made(*groups, row=ALGORITHMS["dapo"]).groups] == [2]
    assert made(*groups).counts["frac_reward_zero_std"] == 0.5
    assert made(*groups).counts["reward_std"] == pytest.approx(0.5 * 2**-0.5)
    assert math.isnan(made([rollout(1.0)]).counts["reward_std"])


def test_completions_carry_the_samplers_likelihoods_of_sampled_tokens_only():
    completion = made([rollout(1.0, n=4), rollout(0.0)]).groups[0][0]
    assert completion.logp_mu.tolist() == [-0.5] * 4 == completion.logp_old.tolist()


def test_rewards_scaled_apart_have_their_weights_and_leave_out_who_has_no_opinion():
    """As in tests/objective/test_advantages.py by hand; a third of the second group failed, and says nothing."""
    parts = [[(1.0, 0.0), (0.0, 0.0)], [(1.0, 0.0), (1.0, 2.0), None]]
    groups = [
        [
            replace(rollout(None if each is None else 1.0), reward_weights=(1.0, 2.0),
                    reward_parts={"f": None, "g": None} if each is None else dict(zip("fg", each)))
            for each in group
        ]
        for group in parts
    ]  # fmt: skip
    out = made(*groups, algorithm=ResolvedAlgorithm(scale_rewards="gdpo"))
    a = 2**-0.5 / (5 / 3) ** 0.5
    assert out.advantages[:4] == pytest.approx([a, -a, -2 * a, 2 * a]) and out.advantages[4] is None
    assert out.counts["groups/with_signal"] == 1 and out.counts["reward_std"] == 0  # though all sums are equal
    silent = replace(groups[1][0], reward_parts={"f": 1.0, "g": None})
    opinions = made(groups[0], [silent, groups[1][1]], algorithm=ResolvedAlgorithm(scale_rewards="gdpo"))
    assert opinions.advantages == pytest.approx([1.5**0.5, -(1.5**0.5), 0, 0])
    assert made([rollout(None)] * 2, algorithm=ResolvedAlgorithm(scale_rewards="gdpo")).groups == []
