"""Metrics of a batch of rollouts: rewards, lengths, repetition, staleness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gspo.data.columns import answer_column, value_in
from gspo.types import Group, Rollout


def repetition(tokens: Sequence[int], n: int = 4) -> float:
    """Share of the n-grams of a completion that are repeats of earlier ones; 0 for fewer than n tokens."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def sampled_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Metrics of all completions that were sampled for a step."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    scored = [[rollout.reward for rollout in group.rollouts if rollout.reward is not None] for group in groups]
    failed = float(sum(rollout.reward is None for rollout in rollouts))
    ends = {f"reward_{end.__name__}/{name}": end(part) for name, part in _parts(rollouts).items() for end in (min, max)}
    return batch_metrics(rollouts) | reward_noise(scored) | ends | {"rollouts/failed": failed}


def reward_noise(scored: Sequence[Sequence[float]]) -> dict[str, float]:
    """Spread of a step's rewards; NaN where there are too few. scored: the rewards of each group.

    reward_std_batch: standard deviation over all completions. reward_min, reward_max: extremes. reward_se: standard error of
    the mean reward, estimated from the differences between prompts, since completions of one prompt are not independent.
    """
    groups = [group for group in scored if group]
    if not groups:
        return dict.fromkeys(("reward_std_batch", "reward_min", "reward_max", "reward_se"), math.nan)
    rewards, n = np.concatenate(groups), len(groups)
    excess = np.array([sum(group) - len(group) * rewards.mean() for group in groups])
    error = math.sqrt(n / (n - 1) * float(excess @ excess)) / len(rewards) if n > 1 else math.nan
    low, high = float(rewards.min()), float(rewards.max())
    return {"reward_std_batch": float(rewards.std()), "reward_min": low, "reward_max": high, "reward_se": error}


def batch_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward and reward parts of the scored rollouts, and lengths of all rollouts."""
    scored = [r.reward for r in rollouts if r.reward is not None]
    lengths = [int(r.sampled.sum()) for r in rollouts]
    metrics = {
        "reward": sum(scored) / len(scored) if scored else float("nan"),
        "completions/mean_length": sum(lengths) / max(1, len(lengths)),
        "completions/repetition": sum(repetition(r.tokens[r.sampled].tolist()) for r in rollouts) / max(1, len(rollouts)),
        "completions/clipped_ratio": sum(r.stop == "length" for r in rollouts) / max(1, len(rollouts)),
        "tokens": sum(lengths),
    }
    return metrics | {f"reward/{name}": sum(values) / len(values) for name, values in _parts(rollouts).items()}


def _parts(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """The values of each reward function, without completions that it did not score."""
    parts: dict[str, list[float]] = {name: [] for name in sorted({name for r in rollouts for name in r.reward_parts})}
    for rollout in rollouts:
        for name, value in rollout.reward_parts.items():
            if value is not None:
                parts[name].append(value)
    return {name: values for name, values in parts.items() if values}


def staleness(rollouts: Sequence[Rollout], version: int) -> float:
    """Mean over sampled tokens of `version` minus the version of the weights that sampled the token."""
    versions = torch.cat([rollout.version[rollout.sampled] for rollout in rollouts])
    return version - float(versions.double().mean())


def in_parts(rollouts: Sequence[Rollout]) -> float:
    """Share of the completions that were sampled by more than one version of the weights."""
    return sum(len(rollout.version[rollout.sampled].unique()) > 1 for rollout in rollouts) / max(1, len(rollouts))


def describe(rollout: Rollout, column: str) -> dict[str, Any]:
    """A rollout as a line of JSON, with the row's answer if any, and the newest weights that sampled any token. column:
    reward.answer_column.
    """
    answer = value_in(rollout.prompt.columns, answer_column(rollout.prompt.task, column))
    return {
        "prompt_id": rollout.prompt.id,
        "prompt": rollout.prompt.messages,
        **({} if answer is None else {"answer": answer if isinstance(answer, (str, int, float)) else str(answer)}),
        "completion": rollout.text,
        "token_ids": rollout.tokens[len(rollout.prompt.tokens) :].tolist(),
        "reward": rollout.reward,
        "reward_parts": rollout.reward_parts,
        "version": int(rollout.version.max()),
        "stop": rollout.stop,
        "error": rollout.error,
    } | ({"dialogue": list(rollout.dialogue)} if rollout.dialogue else {})
