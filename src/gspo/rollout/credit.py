"""Scored groups -> completions with advantages. Failed rollouts are counted, not raised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo.config.policy import ResolvedAlgorithm
from gspo.objective.advantages import decoupled_advantages, group_advantages, turn_advantages
from gspo.objective.algorithms import Algorithm
from gspo.rollout.metrics import sampled_metrics
from gspo.types import Completion, Group, Rollout


@dataclass
class TrainingBatch:
    """The learner's share of a rollout batch."""

    groups: list[list[Completion]]  # the completions of each group that is trained on
    advantages: list[float | list[float] | None]  # A_i of each rollout, or A_ik of its turns; None: not trained on
    counts: dict[str, float]  # metrics


def training_batch(
    groups: Sequence[Group], row: Algorithm, algorithm: ResolvedAlgorithm, mask_truncated: bool
) -> TrainingBatch:
    """Computes advantages, collects the completions that have one, and counts dropped groups."""
    advantages, completions = trained_on(groups, algorithm, mask_truncated)
    left = [group for group in completions if group]
    teaching = [group for group in left if has_signal(group)]
    return TrainingBatch(
        groups=teaching if row.drops_equal else left,
        advantages=[A.tolist() if isinstance(A, Tensor) else A for A in advantages],
        counts=sampled_metrics(groups)
        | within_groups(left)
        | {
            "groups/dropped": float(len(groups) - len(left)),
            "groups/with_signal": len(teaching) / max(1, len(groups)),
        },
    )


def trained_on(
    groups: Sequence[Group], algorithm: ResolvedAlgorithm, mask_truncated: bool
) -> tuple[list[float | Tensor | None], list[list[Completion]]]:
    """The advantage of each rollout, None if it is not trained on, and the trained completions of each group.

    A rollout without a reward (with mask_truncated, also a truncated one) is excluded from its group's mean and standard
    deviation and from every denominator. A group with fewer than two remaining rollouts is dropped.
    """
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    owner = torch.tensor([i for i, group in enumerate(groups) for _ in group.rollouts], dtype=torch.int64)
    kept = torch.tensor([r.reward is not None and not (mask_truncated and r.stop == "length") for r in rollouts])
    kept &= torch.bincount(owner[kept], minlength=len(groups))[owner] >= 2
    indices = kept.nonzero()[:, 0].tolist()
    advantages: list[float | Tensor | None] = [None] * len(rollouts)
    completions: list[list[Completion]] = [[] for _ in groups]
    for index, advantage in zip(indices, compute_advantages([rollouts[i] for i in indices], owner[kept], algorithm)):
        advantages[index] = advantage
        completions[int(owner[index])].append(completion_of(rollouts[index], advantage))
    return advantages, completions


def has_signal(group: Sequence[Completion]) -> bool:
    """Whether any advantage in a group is non-zero."""
    return any(bool(torch.as_tensor(completion.advantage).any()) for completion in group)


def compute_advantages(rollouts: Sequence[Rollout], group: Tensor, algorithm: ResolvedAlgorithm) -> list[float | Tensor]:
    """The advantage of each scored rollout, A_i or A_ik [turns]. group: [S], the index of its group."""
    scale = algorithm.scale_rewards
    if not rollouts:
        return []
    if scale == "gdpo":
        parts = [[math.nan if part is None else part for part in rollout.reward_parts.values()] for rollout in rollouts]
        weights = torch.tensor(rollouts[0].reward_weights, dtype=torch.float64)
        return [*decoupled_advantages(torch.tensor(parts, dtype=torch.float64), weights, group).tolist()]
    if algorithm.credit == "completion":
        rewards = torch.tensor([rollout.reward for rollout in rollouts], dtype=torch.float64)
        return [*group_advantages(rewards, group, scale).tolist()]
    return [*turn_advantages([turn_rewards(rollout) for rollout in rollouts], group, scale, algorithm.discount)]


def turn_rewards(rollout: Rollout) -> tuple[float, ...]:
    """r of each turn; all of it in the last turn if turns are not rewarded separately."""
    turns = 1 if rollout.turn is None else int(rollout.turn.max()) + 1
    assert rollout.reward is not None
    return rollout.turn_rewards or (*[0.0] * (turns - 1), rollout.reward)


def completion_of(rollout: Rollout, advantage: float | Tensor) -> Completion:
    """A rollout as a Completion whose pi_old is the sampler. advantage: A_i, or A_ik of its turns."""
    mu = rollout.logp[rollout.sampled]
    taught = None if rollout.logp_teacher is None else rollout.logp_teacher[rollout.sampled]
    turn = None if rollout.turn is None else rollout.turn[rollout.sampled]
    if isinstance(advantage, Tensor) and advantage.ndim:
        advantage = advantage[torch.zeros(len(mu), dtype=torch.int64) if turn is None else turn]
    return Completion(
        rollout.tokens, rollout.sampled, mu, mu, advantage, routes=rollout.routes, reward=rollout.reward or 0.0, turn=turn,
        parent=rollout.parent, logp_teacher=taught,
    )  # fmt: skip


def within_groups(groups: Sequence[list[Completion]]) -> dict[str, float]:
    """How rewards differ within groups, each of two completions or more; NaN without groups."""
    stds = [float(torch.tensor([completion.reward for completion in group], dtype=torch.float64).std()) for group in groups]
    if not stds:
        return {"frac_reward_zero_std": math.nan, "reward_std": math.nan}
    equal = sum(not has_signal(group) for group in groups)
    return {"frac_reward_zero_std": equal / len(stds), "reward_std": sum(stds) / len(stds)}
