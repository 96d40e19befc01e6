"""The table of algorithms: what each one is, and what may be set about it without making it another one.

An algorithm is a row: its loss, what the outer mean counts, how its rewards are scaled, its default clip range. The
level of the ratio and the aggregation are part of the loss, so no option can change them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from gspo.config import AlgorithmConfig
from gspo.configfile import nearest
from gspo.objective import losses
from gspo.objective.losses import Surrogate

Loss = Callable[..., Surrogate]


@dataclass(frozen=True)
class Algorithm:
    """One row.

    level: what the ratio, the clip and their metrics count, "sequence" or "token". counts: the denominator of an update:
    "replies", "tokens", or "budget" (replies x max_completion_length, Dr.GRPO's constant). scale_rewards: the default
    first, then what else still deserves the name. drops_equal: groups whose rewards are all equal leave the denominator.
    """

    loss: Loss
    level: str
    counts: str
    scale_rewards: tuple[str, ...]
    epsilon: float
    epsilon_high: float
    source: str
    mini_batches: int = 4
    drops_equal: bool = False


ANY_SCALE = ("group", "batch", "none")

ALGORITHMS: dict[str, Algorithm] = {
    "gspo": Algorithm(losses.gspo, "sequence", "replies", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 5"),
    "gspo_token": Algorithm(losses.gspo_token, "sequence", "replies", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 13"),
    "grpo": Algorithm(losses.grpo, "token", "replies", ANY_SCALE, 0.2, 0.27, "arXiv 2402.03300; clip: 2507.18071"),
    "dr_grpo": Algorithm(losses.token_sum, "token", "budget", ("none",), 0.2, 0.2, "arXiv 2503.20783"),
    "dapo": Algorithm(losses.token_sum, "token", "tokens", ANY_SCALE, 0.2, 0.28, "arXiv 2503.14476", drops_equal=True),
}


def resolve(config: AlgorithmConfig) -> tuple[Algorithm, AlgorithmConfig, list[str]]:
    """The row, the settings with its defaults filled in, and warnings about odd values.

    Raises ValueError where a setting would make it another algorithm than its name says.
    """
    if config.name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise ValueError(f"algorithm.name = {config.name!r}: allowed are {known}{nearest(config.name, ALGORITHMS)}")
    row = ALGORITHMS[config.name]
    # One end given alone would leave the other at a default that may be orders of magnitude away.
    if (config.epsilon is None) != (config.epsilon_high is None):
        given, other = ("epsilon", "epsilon_high") if config.epsilon_high is None else ("epsilon_high", "epsilon")
        raise ValueError(
            f"algorithm.{given} = {getattr(config, given)}: set algorithm.{other} too "
            f"({config.name}'s own range is epsilon = {row.epsilon:g}, epsilon_high = {row.epsilon_high:g})"
        )
    scale = config.scale_rewards or row.scale_rewards[0]
    if scale not in row.scale_rewards:
        allowed = " or ".join(row.scale_rewards)
        raise ValueError(
            f"algorithm.scale_rewards = {scale!r} is no longer {config.name} ({row.source}), which scales by {allowed}; "
            'choose algorithm.name = "grpo" for scaled rewards'
        )
    filled = dataclasses.replace(
        config,
        epsilon=row.epsilon if config.epsilon is None else config.epsilon,
        epsilon_high=row.epsilon_high if config.epsilon_high is None else config.epsilon_high,
        mini_batches=config.mini_batches or row.mini_batches,
        scale_rewards=scale,
    )
    return row, filled, odd_values(row, filled)


def odd_values(row: Algorithm, config: AlgorithmConfig) -> list[str]:
    """Warnings about settings that are possible and probably not meant."""
    found = []
    assert config.epsilon is not None and config.epsilon_high is not None
    if row.level == "sequence" and max(config.epsilon, config.epsilon_high) > 0.05:
        found.append(
            f"clip range {config.epsilon:g}/{config.epsilon_high:g} on a sequence ratio: s_i is a geometric mean over the "
            f"reply and stays within some 1e-3 of 1, so such a clip never binds (the paper's is 3e-4/4e-4)"
        )
    if row.level == "token" and max(config.epsilon, config.epsilon_high) < 5e-3:
        found.append(
            f"clip range {config.epsilon:g}/{config.epsilon_high:g} on token ratios: these vary by some 1e-1, so such a "
            f"clip takes away most gradients ({config.name}'s own is {row.epsilon:g}/{row.epsilon_high:g})"
        )
    if config.scale_rewards != row.scale_rewards[0]:
        found.append(
            f'scale_rewards = "{config.scale_rewards}": {config.name} divides by the {row.scale_rewards[0]} standard '
            f"deviation ({row.source}); results are not comparable with the paper's"
        )
    if config.mini_batches == 1 and config.epochs == 1:
        found.append(
            "mini_batches = 1 and epochs = 1: each batch gives one update, whose ratios are all 1, so nothing is ever "
            "clipped and sequence and token level are the same"
        )
    if row.drops_equal:
        found.append(
            f"{config.name} refills groups whose rewards are all equal with new prompts; here they are only dropped, "
            "so updates hold fewer groups than num_prompts / mini_batches"
        )
    if config.beta > 0 and config.kl_estimator == "k1":
        found.append('kl_estimator = "k1" as a loss has zero gradient on average: use k2 or k3 to hold the policy back')
    return found
