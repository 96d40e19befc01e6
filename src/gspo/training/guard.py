"""The collapse guard: judges the metrics of each step, warns early, and detects when a run has collapsed.

Each signal is a row of SIGNALS. Published thresholds are used unchanged (sources in docs/stability.md). Metrics without a
published scale are compared with their own recent median, and the reward is judged by a sequential test (reward_fall.py).
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gspo.config.training import GuardConfig
from gspo.runs.log import is_number
from gspo.training.reward_fall import RewardFall, other_queries

RECENT = 20  # window of the recent median, in steps
ENOUGH = 8  # steps before values are compared with the median
REMIND_AFTER = 20  # steps before a warning is repeated
QUIET, WARNING, ALARM = 0, 1, 2
HALF = 10  # steps of the two means that tell whether the reward has moved at all, and of the medians beside them
# KL per token from pi_old to pi_theta (nats) below which a policy hardly moves. SmolLM2-135M stood still at 6e-6 and learned
# at 2e-3 to 7e-3, with ten times the rate. Tiny mixtures learn at 1e-5 too, so the reward must stand still as well.
TINY = 3e-5
TENFOLD = 10.0
CLIPPED = 1 / 3  # share of the tokens with an advantage above which a clip range takes too much; the paper clips 0.15
SHARE, RANGE = "clip_ratio/with_advantage", ("clip/epsilon", "clip/epsilon_high")
FELT = 0.05  # a correction whose bounds take nothing and whose weights all differ from 1 by less than this changes nothing
WEIGHED = ("correction/low", "correction/high", "correction/ratio_min", "correction/ratio_max")


@dataclass(frozen=True)
class Signal:
    """A metric to watch and its thresholds."""

    metric: str
    judged: str  # "above" or "below" a threshold, or "rise" or "fall" as a factor of its recent median
    warn: float  # threshold of a warning
    alarm: float | None  # threshold of an alarm; None: never
    means: str  # the usual cause
    least: float = 0.0  # smaller values are not judged

    def level(self, value: float, median: float | None) -> int:
        """QUIET, WARNING or ALARM. median: the recent one, None until there are enough steps."""
        if self.judged in ("rise", "fall"):
            if median is None or median <= 0 or max(value, median) < self.least:
                return QUIET
            value = value / median
        above = self.judged in ("above", "rise")
        past = [t is not None and (value > t if above else value < t) for t in (self.warn, self.alarm)]
        return ALARM if past[1] else WARNING if past[0] else QUIET


SAMPLER = (
    'sampler and trainer disagree: algorithm.old_logprobs = "recompute", algorithm.correction, algorithm.router_replay or '
    'model.dtype = "float32" may help'
)
FAR = "each batch moves the policy further than before: lower optimizer.lr"
LOWER_LR = "lower optimizer.lr, or set algorithm.beta"
EXPLORE = "lower optimizer.lr, or set algorithm.entropy_bonus"
CUT_OFF = (
    "cut-off completions go with instability: raise rollout.max_completion_length, or have the model end sooner "
    "(task.template_args = {enable_thinking = false} for models that think)"
)
SIGNALS: tuple[Signal, ...] = (
    Signal("mismatch/kl", "above", 1e-2, 0.3, SAMPLER),
    Signal("mismatch/prob_mean", "above", 0.05, 0.15, SAMPLER),
    Signal("mismatch/ratio_over_2", "above", 0.02, 0.2, SAMPLER),
    Signal("mismatch/ess", "below", 0.3, None, SAMPLER),
    Signal("kl", "rise", 10.0, None, FAR, least=1e-3),
    Signal("ratio/std", "rise", 5.0, None, FAR),
    Signal("grad_norm", "rise", 6.0, None, "a spike, often the first sign of a run that breaks: lower optimizer.lr"),
    Signal("entropy", "fall", 0.3, None, f"the policy stops exploring: {EXPLORE}", least=1e-2),
    Signal("entropy", "rise", 3.0, 10.0, "the policy falls apart: lower optimizer.lr", least=0.2),
    Signal("completions/clipped_ratio", "above", 0.15, None, CUT_OFF),
    Signal("completions/repetition", "rise", 2.0, None, f"completions begin to repeat themselves: {LOWER_LR}", least=0.3),
)


@dataclass(frozen=True)
class Verdict:
    """The guard's judgement of a step.

    good: whether the state is worth returning to: no alarm, and neither the mean reward nor the reward of this step has
    fallen. After a rewind, False until a whole window is available.
    """

    warnings: list[str] = field(default_factory=list)
    collapsed: str = ""  # the reason, once the alarm has lasted `patience` steps
    good: bool = True
    metrics: dict[str, Any] = field(default_factory=dict)


class Guard:
    """Judges a run step by step. rewinds: number of times that the run went back to a good checkpoint."""

    def __init__(self, config: GuardConfig, fixed_range: bool = True):
        """fixed_range: whether the clip range is one of the settings, not automatic."""
        self.config, self.fixed_range = config, fixed_range
        self.rewinds = 0
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._fall = RewardFall(config.window)
        self._alarms = 0
        self._stage = 0.0
        self._reported: dict[str, int] = {}

    def observe(self, metrics: Mapping[str, Any]) -> Verdict:
        """Judges the metrics of one step. Missing or non-numeric metrics are not judged."""
        if self.config.action == "off":
            return Verdict()
        self._compare_anew(metrics)
        found = self._signals(metrics)
        reward = self._reward(metrics)
        if reward is not None:
            found.append(reward)
        standing = {name: text for name, text in self._hindrances(metrics).items() if name not in self._reported}
        found += [(name, WARNING, text) for name, text in standing.items()]  # each once
        level = max((level for _, level, _ in found), default=QUIET)
        self._alarms = self._alarms + 1 if level == ALARM else 0
        step = int(metrics.get("step", 0))
        warnings = [text for name, _, text in found if self._is_news(name, step)]
        collapsed = "; ".join(text for _, level, text in found if level == ALARM)
        return Verdict(
            warnings=[f"step {step}: {text}" for text in warnings],
            collapsed=collapsed if self._alarms >= self.config.patience else "",
            good=level < ALARM and reward is None and self._fall.holds(self._border),
            metrics={"guard/level": level, "guard/signals": [name for name, _, _ in found]}
            | ({"guard/rewinds": self.rewinds} if self.rewinds else {}),
        )

    def _compare_anew(self, metrics: Mapping[str, Any]) -> None:
        """Resets the history if the queries or the temperature changed, since earlier steps are not comparable."""
        if other_queries(metrics, self._stage):
            self._stage, self._fall = metrics.get("stage", self._stage), RewardFall(self.config.window)
            self._recent.clear()

    def _signals(self, metrics: Mapping[str, Any]) -> list[tuple[str, int, str]]:
        """Name, level and message of each signal that is not quiet."""
        found = []
        for signal in SIGNALS:
            value, recent = metrics.get(signal.metric), self._recent[signal.metric]
            if not is_number(value):
                continue
            median = statistics.median(recent) if len(recent) >= ENOUGH else None
            level = signal.level(value, median)
            if level != QUIET:
                against = f"{value:.3g} ({signal.judged} {signal.warn:g})"
                if signal.judged in ("rise", "fall"):
                    against = f"{value:.3g}, {value / (median or 1):.2g} times its recent median"
                found.append((f"{signal.metric} {signal.judged}", level, f"{signal.metric} is {against}: {signal.means}"))
        for name in {SHARE, *RANGE, *WEIGHED, *(signal.metric for signal in SIGNALS)}:
            if is_number(metrics.get(name)):
                self._recent[name].append(metrics[name])
        return found

    def _reward(self, metrics: Mapping[str, Any]) -> tuple[str, int, str] | None:
        """A fall of the reward that is deep and not explained by noise."""
        fall = self._fall.observe(metrics)
        if fall is None or fall.share >= self._border:
            return None
        level = ALARM if fall.share < self.config.collapse else WARNING
        return "reward fall", level, f"{fall}: lower optimizer.lr, or go back to an earlier checkpoint"

    def _hindrances(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        """A range that clips too much, a rate that hardly moves the policy, a correction without effect."""
        found = {}
        kl, share = (list(self._recent[name])[-HALF:] for name in ("kl", SHARE))
        low, high = (list(self._recent[name])[-HALF:] for name in RANGE)
        if self.fixed_range and len(low) == len(share) == HALF and statistics.median(share) > CLIPPED:
            found["clip range"] = (
                f"in {HALF} steps {statistics.median(share):.0%} of the tokens with an advantage were clipped by the range "
                f"{low[-1]:.1g}/{high[-1]:.1g}: make algorithm.epsilon and epsilon_high ten times as wide, or set epsilon = "
                '"auto" alone'
            )
        still, lr = self._fall.standstill(HALF), metrics.get("lr")
        moved = len(kl) == HALF and metrics.get("updates", 0) > 1  # in the first update of a step kl is only rounding
        if still is not None and moved and is_number(lr) and 0 < statistics.median(kl) < TINY:
            found["standstill"] = (
                f"the reward stands still ({still[0]:.3g} in the first {HALF} steps, {still[1]:.3g} in the last), and a "
                f"step moves the policy by a KL of only {statistics.median(kl):.1g} nats a token: raise optimizer.lr from "
                f"{lr:.2g} to {lr * TENFOLD:.2g}"
            )
        below, above, least, most = (list(self._recent[name])[-HALF:] for name in WEIGHED)
        if len(below) == HALF and not any(below + above) and min(least) > 1 - FELT and max(most) < 1 + FELT:
            found["correction"] = (
                f"algorithm.correction has changed nothing in {HALF} steps: pi_old/mu lay between {min(least):.6f} and "
                f"{max(most):.6f}, within its bounds: leave it out, or move algorithm.correction_low and correction_high "
                "into that range"
            )
        return found

    @property
    def _border(self) -> float:
        """The share of the best reward below which the reward counts as fallen."""
        return (1 + self.config.collapse) / 2

    def _is_news(self, name: str, step: int) -> bool:
        if name in self._reported and step - self._reported[name] < REMIND_AFTER:
            return False
        self._reported[name] = step
        return True

    def rewound(self) -> None:
        """The run went back to a good checkpoint: resets the recent metrics and alarms, but keeps the best reward."""
        self.rewinds += 1
        self._recent.clear()
        self._fall.rewound()
        self._alarms = 0

    def state_dict(self) -> dict[str, Any]:
        """All state that the next verdict depends on, in plain types."""
        return {
            "recent": {name: list(values) for name, values in self._recent.items()},
            "fall": self._fall.state_dict(),
            "alarms": self._alarms,
            "reported": dict(self._reported),
            "rewinds": self.rewinds,
            "stage": self._stage,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict()`."""
        for name, values in state["recent"].items():
            self._recent[name].extend(values)
        self._fall.load_state_dict(state["fall"])
        self._alarms = state["alarms"]
        self._reported, self.rewinds, self._stage = dict(state["reported"]), state["rewinds"], state["stage"]
