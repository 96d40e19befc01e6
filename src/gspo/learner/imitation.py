"""The objective of supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gspo.learner.interfaces import Objective
from gspo.types import Batch, Completion, Outputs, Stats


class Imitation(Objective):
    """Negative mean log-probability of the completion tokens."""

    def denominator(self, completions: Sequence[Completion]) -> float:
        """Number of completion tokens."""
        return float(sum(int(completion.sampled.sum()) for completion in completions))

    def idle(self, completion: Completion) -> bool:
        """Never: every completion is trained on."""
        return False

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """-log pi of each token [N]."""
        assert out.entropy is not None
        return -out.logp, {"entropy": out.entropy.detach(), "nll": -out.logp.detach()}

    def summary(self, stats: Stats, completions: Sequence[Completion]) -> dict[str, float]:
        """loss: nats per token."""
        return {"loss": float(stats["nll"].mean()), "entropy": float(stats["entropy"].mean())}
