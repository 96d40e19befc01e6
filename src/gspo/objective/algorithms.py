"""Table of algorithms: the definition of each, and the options that may change without making it a different algorithm.

Each algorithm is a row: loss, denominator of the outer mean, reward scaling and default clip range. The level of the ratio
and the aggregation are part of the loss, so no option can change them. Imports no torch: losses are looked up when called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gspo.objective.losses import Surrogate

WIDEST = 0.5
"""Widest clip range that `epsilon = "auto"` may choose."""


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    counts: denominator of an update: "completions", "tokens", or "budget" (completions x max_completion_length, Dr.GRPO's
    constant). likelihoods: log-probabilities in the denominators of its ratios, "logp_old" and "logp_mu". critic: constants
    of a learned value function, whose per-token advantages replace the group's. sums: a completion's term grows with its
    length, and its KL term is the sum over its tokens; otherwise the mean.
    """

    loss: str | Callable[..., Surrogate]  # or its name in gspo.objective as `module:function`
    level: str  # of the ratio and the clip: "sequence", "turn" or "token"
    counts: str
    scale_rewards: tuple[str, ...]  # reward scalings under which the algorithm keeps its name, the default first
    epsilon: float | None  # default lower clip range; None for a loss without one
    epsilon_high: float | None
    source: str
    constants: Mapping[str, float] = field(default_factory=dict)  # further arguments of the loss
    likelihoods: tuple[str, ...] = ("logp_old",)
    critic: Mapping[str, float] = field(default_factory=dict)
    mini_batches: int = 4
    drops_equal: bool = False  # groups whose rewards are all equal do not count in the denominator
    sums: bool = False
    by_turn: bool = False  # A may differ from turn to turn
    by_group: bool = False  # A comes times the weight that a completion has in its group (advantages.py:expectation_weights)

    @property
    def loss_function(self) -> Callable[..., Surrogate]:
        """The loss function, imported if it is given by name."""
        if not isinstance(self.loss, str):
            return self.loss
        module, _, name = self.loss.partition(":")
        return getattr(import_module(f"gspo.objective.{module}"), name)


BOUNDS: dict[tuple[str, str], tuple[float | None, float]] = {
    ("tis", "token"): (None, 2.0), ("tis", "mean"): (None, 1.01), ("tis", "product"): (None, 2.0),
    ("icepop", "token"): (0.5, 5.0), ("icepop", "mean"): (0.99, 1.01), ("icepop", "product"): (0.5, 2.0),
    ("seq_mis", "mean"): (0.99, 1.01), ("seq_mis", "product"): (None, 2.0),
}  # fmt: skip
"""Default bounds of r = pi_old/mu of each correction (corrections.py): of a token, or of a completion's mean or product."""


def correction_level(row: Algorithm, correction: str) -> str:
    """What a correction weighs: whole completions ("sequence"), turns or tokens."""
    return "sequence" if correction == "seq_mis" else row.level


ANY_SCALE = ("group", "batch", "none", "gdpo")
NO_STD = ("none",)
TAU = {"tau_pos": 1.0, "tau_neg": 1.05}
VESPO = {"c1_pos": 2.0, "c2_pos": 3.0, "c1_neg": 3.0, "c2_neg": 2.0}
GAE = {"gamma": 1.0, "lam": 0.95, "e_value": 0.2, "c_value": 0.5}

ALGORITHMS: dict[str, Algorithm] = {
    "gspo": Algorithm("losses:gspo", "sequence", "completions", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 5"),
    "gspo_token": Algorithm(
        "losses:gspo_token", "sequence", "completions", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 13", by_turn=True
    ),
    "gspo_turn": Algorithm(
        "losses:gspo_turn", "turn", "completions", ANY_SCALE, 3e-4, 4e-4, "arXiv 2507.18071, Eq. 13, by turn", by_turn=True
    ),
    "grpo": Algorithm(
        "losses:grpo", "token", "completions", ANY_SCALE, 0.2, 0.27, "arXiv 2402.03300; clip: 2507.18071", by_turn=True
    ),
    "grpo_dual": Algorithm(
        "baselines:grpo_dual", "token", "completions", ANY_SCALE, 0.2, 0.27, "arXiv 1912.09729; clip: 2507.18071",
        {"clip_c": 3.0}, by_turn=True,
    ),
    "dr_grpo": Algorithm("losses:token_sum", "token", "budget", NO_STD, 0.2, 0.2, "arXiv 2503.20783", sums=True),
    "dapo": Algorithm(
        "losses:token_sum", "token", "tokens", ANY_SCALE, 0.2, 0.28, "arXiv 2503.14476", drops_equal=True, sums=True
    ),
    "luspo": Algorithm("baselines:luspo", "sequence", "completions", ANY_SCALE, 2e-3, 2.5e-3, "arXiv 2602.05261", sums=True),
    "gmpo": Algorithm(
        "baselines:gmpo", "sequence", "completions", ANY_SCALE, None, None, "arXiv 2507.20673", {"delta": 0.4}
    ),
    "cispo": Algorithm(
        "baselines:cispo", "token", "tokens", ANY_SCALE, None, None, "arXiv 2506.13585; cap: 2510.13786", {"w_max": 5.0},
        sums=True,
    ),
    "sapo": Algorithm("baselines:sapo", "token", "completions", ANY_SCALE, None, None, "arXiv 2511.20347", TAU),
    "dppo_tv": Algorithm(
        "baselines:dppo_tv", "token", "tokens", ANY_SCALE, None, None, "arXiv 2602.04879", {"delta": 0.15, "w_max": 20.0},
        likelihoods=("logp_mu",), sums=True,
    ),
    "dppo_kl": Algorithm(
        "baselines:dppo_kl", "token", "tokens", ANY_SCALE, None, None, "arXiv 2602.04879", {"delta": 0.05, "w_max": 20.0},
        likelihoods=("logp_mu",), sums=True,
    ),
    "minirl": Algorithm(
        "baselines:minirl", "token", "budget", NO_STD, 0.2, 0.27, "arXiv 2512.01374", likelihoods=("logp_old", "logp_mu"),
        sums=True,
    ),
    "reinforce": Algorithm(
        "baselines:reinforce", "token", "completions", ANY_SCALE, None, None, "Williams 1992; A: arXiv 2402.03300",
        likelihoods=(), by_turn=True,
    ),
    "reinforce_is": Algorithm(
        "baselines:reinforce_is", "sequence", "completions", ANY_SCALE, None, None, "Ionides 2008; A: arXiv 2402.03300",
        {"w_max": 10.0},
    ),
    "gepo": Algorithm(
        "baselines:gepo", "sequence", "completions", ANY_SCALE, None, None, "arXiv 2508.17850, Eq. 3",
        likelihoods=("logp_mu",), by_group=True,
    ),
    "vespo": Algorithm(
        "baselines:vespo", "sequence", "tokens", NO_STD, None, None, "arXiv 2602.10693, Eq. 20", VESPO,
        likelihoods=("logp_mu",), sums=True,
    ),
    "ppo": Algorithm(
        "losses:token_sum", "token", "tokens", ("batch", "none"), 0.2, 0.2, "arXiv 1707.06347; GAE: 1506.02438", critic=GAE,
        sums=True,
    ),
}  # fmt: skip
