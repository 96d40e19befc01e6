"""The table of algorithms: what each one is, and what may be set about it without making it another one.

An algorithm is a row: its loss, what the outer mean counts, how its rewards are scaled, its default clip range. The
level of the ratio and the aggregation are part of the loss, so no option can change them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gspo.config.checks import nearest
from gspo.config.policy import AlgorithmConfig
from gspo.objective import baselines, losses
from gspo.objective.losses import Surrogate

Loss = Callable[..., Surrogate]


@dataclass(frozen=True)
class Algorithm:
    """One row.

    level: what the ratio and the clip count, "sequence", "turn" or "token". counts: the denominator of an update:
    "replies", "tokens", or "budget" (replies x max_completion_length, Dr.GRPO's constant). scale_rewards: the default
    first, then what else still deserves the name. epsilon, epsilon_high: the clip range, None for one without. constants:
    arguments of the loss beside them. likelihoods: those that its ratios divide by, "logp_old" and "logp_mu".
    critic: constants of a learned value function, whose advantages by token take the place of the group's; empty for none.
    drops_equal: groups whose rewards are all equal leave the denominator. sums: a reply's term grows with its length, and
    its KL term is the sum over its tokens; otherwise the mean. by_turn: A may differ from turn to turn.
    """

    loss: Loss
    level: str
    counts: str
    scale_rewards: tuple[str, ...]
    epsilon: float | None
    epsilon_high: float | None
    source: str
    constants: Mapping[str, float] = field(default_factory=dict)
    likelihoods: tuple[str, ...] = ("logp_old",)
    critic: Mapping[str, float] = field(default_factory=dict)
    mini_batches: int = 4
    drops_equal: bool = False
    sums: bool = False
    by_turn: bool = False


ANY_SCALE = ("group", "batch", "none")
NO_STD = ("none",)
UNIT = ("gamma", "lam")  # constants from 0 to 1; all others are above 0
TAU = {"tau_pos": 1.0, "tau_neg": 1.05}
GAE = {"gamma": 1.0, "lam": 0.95, "e_value": 0.2, "c_value": 0.5}

ALGORITHMS: dict[str, Algorithm] = {
    "gspo": Algorithm(losses.gspo, "sequence", "replies", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 5"),
    "gspo_token": Algorithm(
        losses.gspo_token, "sequence", "replies", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 13", by_turn=True
    ),
    "gspo_turn": Algorithm(
        losses.gspo_turn, "turn", "replies", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 13, by turn", by_turn=True
    ),
    "grpo": Algorithm(
        losses.grpo, "token", "replies", ANY_SCALE, 0.2, 0.27, "arXiv 2402.03300; clip: 2507.18071", by_turn=True
    ),
    "dr_grpo": Algorithm(losses.token_sum, "token", "budget", NO_STD, 0.2, 0.2, "arXiv 2503.20783", sums=True),
    "dapo": Algorithm(
        losses.token_sum, "token", "tokens", ANY_SCALE, 0.2, 0.28, "arXiv 2503.14476", drops_equal=True, sums=True
    ),
    "luspo": Algorithm(baselines.luspo, "sequence", "replies", ANY_SCALE, 2e-3, 2.5e-3, "arXiv 2602.05261", sums=True),
    "gmpo": Algorithm(baselines.gmpo, "sequence", "replies", ANY_SCALE, None, None, "arXiv 2507.20673", {"delta": 0.4}),
    "cispo": Algorithm(
        baselines.cispo, "token", "tokens", ANY_SCALE, None, None, "arXiv 2506.13585; cap: 2510.13786", {"w_max": 5.0},
        sums=True,
    ),
    "sapo": Algorithm(baselines.sapo, "token", "replies", ANY_SCALE, None, None, "arXiv 2511.20347", TAU),
    "dppo_tv": Algorithm(
        baselines.dppo_tv, "token", "tokens", ANY_SCALE, None, None, "arXiv 2602.04879", {"delta": 0.15, "w_max": 20.0},
        likelihoods=("logp_mu",), sums=True,
    ),
    "dppo_kl": Algorithm(
        baselines.dppo_kl, "token", "tokens", ANY_SCALE, None, None, "arXiv 2602.04879", {"delta": 0.05, "w_max": 20.0},
        likelihoods=("logp_mu",), sums=True,
    ),
    "minirl": Algorithm(
        baselines.minirl, "token", "budget", NO_STD, 0.2, 0.27, "arXiv 2512.01374", likelihoods=("logp_old", "logp_mu"),
        sums=True,
    ),
    "ppo": Algorithm(
        losses.token_sum, "token", "tokens", ("batch", "none"), 0.2, 0.2, "arXiv 1707.06347; GAE: 1506.02438", critic=GAE,
        sums=True,
    ),
}  # fmt: skip


def resolve(config: AlgorithmConfig, refill: int = 0) -> tuple[Algorithm, AlgorithmConfig, list[str]]:
    """The row, the settings with its defaults filled in, and warnings about odd values. refill: rollout.refill.

    Raises ValueError where a setting would make it another algorithm than its name says, or would have no effect.
    """
    if config.name not in ALGORITHMS:
        known = ", ".join(ALGORITHMS)
        raise ValueError(f"algorithm.name = {config.name!r}: allowed are {known}{nearest(config.name, ALGORITHMS)}")
    row = ALGORITHMS[config.name]
    _check_clip(row, config)
    scale = config.scale_rewards or row.scale_rewards[0]
    if scale not in row.scale_rewards:
        allowed = " or ".join(row.scale_rewards)
        raise ValueError(
            f"algorithm.scale_rewards = {scale!r} is no longer {config.name} ({row.source}), which scales by {allowed}; "
            'choose algorithm.name = "grpo" for scaled rewards'
        )
    _check_correction(row, config)
    _check_credit(row, config)
    critic = config.critic or ("shared" if row.critic else "none")
    if bool(row.critic) != (critic != "none"):
        raise ValueError(
            f"algorithm.critic = {critic!r}: {config.name} "
            + ('learns from values and needs a critic: "shared" or "copy"' if row.critic else 'has no use for one: "none"')
        )
    if row.critic and refill:
        raise ValueError(
            f"rollout.refill = {refill}: {config.name} also learns from groups whose rewards are all equal, by its values; "
            "set it to 0"
        )
    low, high = (config.epsilon, config.epsilon_high) if config.epsilon is not None else (row.epsilon, row.epsilon_high)
    filled = dataclasses.replace(
        config,
        epsilon=low,
        epsilon_high=high,
        mini_batches=config.mini_batches or row.mini_batches,
        scale_rewards=scale,
        constants=_constants(row, config),
        critic=critic if row.critic else config.critic,
    )
    return row, filled, odd_values(row, filled, refill)


def _check_clip(row: Algorithm, config: AlgorithmConfig) -> None:
    """Whether the clip range that is set makes sense for this row. Raises ValueError."""
    given = {key: value for key in ("epsilon", "epsilon_high") if (value := getattr(config, key)) is not None}
    if not given:
        return
    key, value = next(iter(given.items()))
    if row.epsilon is None or row.epsilon_high is None:
        own = f": its own constants are {dict(row.constants)}, set by algorithm.constants" if row.constants else ""
        raise ValueError(
            f"algorithm.{key} = {value!r}: {config.name} has no clip range [1 - epsilon, 1 + epsilon_high]{own}"
        )
    if config.epsilon == "auto":
        if config.epsilon_high is not None:
            raise ValueError(
                f'algorithm.epsilon_high = {config.epsilon_high:g}: epsilon = "auto" sets both ends, at the ratio of '
                f"{config.name}'s own ({row.epsilon:g} to {row.epsilon_high:g}); leave it out"
            )
    elif len(given) == 1:
        # One end given alone would leave the other at a default that may be orders of magnitude away.
        other = "epsilon_high" if key == "epsilon" else "epsilon"
        raise ValueError(
            f"algorithm.{key} = {value}: set algorithm.{other} too "
            f"({config.name}'s own range is epsilon = {row.epsilon:g}, epsilon_high = {row.epsilon_high:g})"
        )


def _check_correction(row: Algorithm, config: AlgorithmConfig) -> None:
    """Whether weights pi_old/mu have something to correct. Raises ValueError."""
    if config.correction == "none":
        return
    if "logp_mu" in row.likelihoods:
        raise ValueError(
            f"algorithm.correction = {config.correction!r}: {config.name} weighs by pi_theta/mu itself, so the mismatch "
            'would be corrected twice; leave it at "none"'
        )
    if config.old_logprobs != "recompute":
        raise ValueError(
            f"algorithm.correction = {config.correction!r} weighs by pi_old/mu, and with algorithm.old_logprobs = "
            f'{config.old_logprobs!r} pi_old is or may be mu, so that every weight is 1: set old_logprobs = "recompute"'
        )


def _check_credit(row: Algorithm, config: AlgorithmConfig) -> None:
    """Whether advantages by turn have a place in the loss. Raises ValueError."""
    if config.credit == "turn" and not row.by_turn:
        known = ", ".join(name for name, each in ALGORITHMS.items() if each.by_turn)
        raise ValueError(
            f'algorithm.credit = "turn": {config.name} has one advantage for a whole reply; algorithm.name may be {known}'
        )
    if config.credit == "reply" and config.discount != 1:
        raise ValueError(
            f'algorithm.discount = {config.discount:g} has no effect with algorithm.credit = "reply": set credit = "turn"'
        )


def _constants(row: Algorithm, config: AlgorithmConfig) -> dict[str, float]:
    """The row's constants with the configured changes. Raises ValueError for unknown ones, and for values out of range."""
    own = {**row.constants, **row.critic}
    for name, value in config.constants.items():
        if name not in own:
            known = f"its own are {', '.join(own)}" if own else "it has none"
            raise ValueError(f"algorithm.constants: {config.name} has no constant {name!r}; {known}{nearest(name, own)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"algorithm.constants: {name} = {value!r}: must be a finite number")
        if not (0 <= value <= 1 if name in UNIT else value > 0):
            raise ValueError(f"algorithm.constants: {name} = {value!r}: must be {'0 to 1' if name in UNIT else 'above 0'}")
    return {**own, **config.constants}


def odd_values(row: Algorithm, config: AlgorithmConfig, refill: int) -> list[str]:
    """Warnings about settings that are possible and probably not meant. refill: rollout.refill."""
    found = []
    reach = max((e for e in (config.epsilon, config.epsilon_high) if isinstance(e, float)), default=None)
    if row.level != "token" and reach is not None and reach > 0.05:
        found.append(
            f"clip range {config.epsilon:g}/{config.epsilon_high:g} on a sequence ratio: s_i is a geometric mean over the "
            f"reply and stays within some 1e-3 of 1, so such a clip never binds (the paper's is 3e-4/4e-4)"
        )
    if row.level == "token" and config.epsilon == "auto" and config.clip_target > 0.02:
        found.append(
            f'epsilon = "auto" with clip_target = {config.clip_target:g} on token ratios: {config.name} usually clips some '
            "0.1 % of the tokens, so its clip will be far tighter than usual"
        )
    if row.level == "token" and reach is not None and reach < 5e-3:
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
    if config.old_logprobs == "recompute" and "logp_old" not in row.likelihoods:
        found.append(
            f'old_logprobs = "recompute": {config.name} divides by mu alone, so the forward pass for pi_old changes no '
            "gradient, only the metric kl"
        )
    if row.drops_equal and not refill:
        found.append(
            f"{config.name} refills groups whose rewards are all equal with new prompts; with rollout.refill = 0 they are "
            "only dropped, so updates hold fewer groups than num_prompts / mini_batches"
        )
    if config.beta > 0 and config.kl_estimator == "k1":
        found.append('kl_estimator = "k1" as a loss has zero gradient on average: use k2 or k3 to hold the policy back')
    return found
