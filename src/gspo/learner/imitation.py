"""Supervised fine-tuning as what a learner minimises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gspo.types import Batch, Completion, Outputs, Stats


class Imitation:
    """Minus the mean log-probability of the completions' tokens, as an Objective."""

    def denominator(self, completions: Sequence[Completion]) -> float:
        """Completion tokens."""
        return float(sum(int(completion.sampled.sum()) for completion in completions))

    def idle(self, completion: Completion) -> bool:
        """Every completion is imitated."""
        return False

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """-log pi of each token [N]."""
        assert out.entropy is not None
        return -out.logp, {"entropy": out.entropy, "nll": -out.logp.detach()}

    def condensed(self, stats: Stats) -> Stats:
        """They are small."""
        return stats

    def summary(self, stats: Stats, completions: Sequence[Completion]) -> dict[str, float]:
        """loss: nats a token."""
        return {"loss": float(stats["nll"].mean()), "entropy": float(stats["entropy"].mean())}

    def watch(self, stats: Stats) -> None:
        """Nothing is learned from updates."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""
