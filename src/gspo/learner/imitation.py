"""The objective of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from gspo.types import Batch, Completion, Outputs, Stats


class Imitation:
    """Negative mean log-probability of the completion tokens. An Objective."""

    def denominator(self, completions: Sequence[Completion]) -> float:
        """Number of completion tokens."""
        return float(sum(int(completion.sampled.sum()) for completion in completions))

    def idle(self, completion: Completion) -> bool:
        """Never: every completion is trained on."""
        return False

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """-log pi of each token [N]."""
        assert out.entropy is not None
        return -out.logp, {"entropy": out.entropy, "nll": -out.logp.detach()}

    def condensed(self, stats: Stats) -> Stats:
        """Unchanged: they are small."""
        return stats

    def summary(self, stats: Stats, completions: Sequence[Completion]) -> dict[str, float]:
        """loss: nats per token."""
        return {"loss": float(stats["nll"].mean()), "entropy": float(stats["entropy"].mean())}

    def watch(self, stats: Stats) -> None:
        """Ignored: there is no state."""

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
