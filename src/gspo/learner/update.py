"""One update: count, forward, backward, step.

The whole update has a single denominator, known before the first forward pass, so that gradients do not depend on the
micro-batches, their order, or the number of processes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gspo.learner import layout
from gspo.learner.deterministic_backward import in_one_order
from gspo.learner.device_to_host import nonzero, on_host
from gspo.learner.interfaces import Objective, Policy
from gspo.learner.memory import MicroBatches, Readers, outside_of_passes
from gspo.learner.optimizer import Optimizer
from gspo.types import Completion, Metrics, Outputs, Stats


class Updater:
    """Updates a policy with its optimizer. replay: by the experts in the completions' routes (Routing Replay)."""

    def __init__(self, policy: Policy, optimizer: Optimizer, micro_batches: MicroBatches, replay: bool = False) -> None:
        self.policy, self.optimizer, self.micro_batches, self.replay = policy, optimizer, micro_batches, replay
        # Of the last update: shares of its sampled tokens whose completions, or whose backward passes, were left out.
        self.skipped: dict[str, float] = {}

    def update(
        self, objective: Objective, completions: Sequence[Completion], readers: Readers | None = None
    ) -> tuple[Metrics, Stats]:
        """One optimizer step on a mini-batch. When out of memory, halves the micro-batches and retries the update; raises
        RuntimeError if that does not help. readers: which rank reads which of the `active` completions.

        Returns metrics and the statistics that they are computed from. Only rank 0 gets the latter and their metrics.
        """
        tried = [completions[i] for i in active(objective, completions)]
        work = partial(self._gradient, objective, completions, tried, readers)
        mine = self.micro_batches.attempt(work, tried, self.policy.shares_prompts, self.optimizer.clear)
        ranks = self.micro_batches.ranks
        every = ranks.gathered(mine._replace(stats={}))
        parts = [part for part in ranks.to_leader(objective.condensed(mine.stats) if mine.stats else {}) if part]
        total, passed = sum(share.loss for share in every), sum(share.passed for share in every)
        with outside_of_passes("in AdamW's step", ranks):
            if not passed:
                self.optimizer.set_zero_gradients()
            metrics = {"loss": total} | self.optimizer.step(total)
        stats = {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else ())}
        tokens, read = (sum(len(completion.logp_old) for completion in some) for some in (completions, tried))
        self.skipped = {"no_signal/completions": 1 - read / tokens, "no_signal/backward": (read - passed) / tokens}
        return metrics | (objective.summary(stats, completions) if ranks.number == 0 else {}), stats

    def _gradient(
        self, objective: Objective, completions: Sequence[Completion], tried: Sequence[Completion], readers: Readers | None
    ) -> Share:
        """Accumulates this rank's share of an update's gradient.

        Work with exactly zero gradient is skipped: idle completions entirely, and the backward pass of other micro-batches.
        The denominator includes them, so the gradient is unchanged.
        """
        denominator = objective.denominator(completions)
        gathered: dict[str, list[Tensor]] = defaultdict(list)
        losses, passed = list[Tensor](), 0
        for indices, counts in self.micro_batches.deal(tried, self.policy.shares_prompts, readers):
            done = self._pass(objective, [tried[i] for i in indices], denominator, counts)
            if counts:
                passed += done.tokens if done.passes else 0
                losses.append(done.loss)
                for name, value in done.stats.items():
                    gathered[name].append(value)
        total = torch.zeros((), dtype=torch.float64)
        *values, lost = on_host([*map(torch.cat, gathered.values()), torch.stack(losses or [total])])
        for loss in lost:
            total += loss.double()
        return Share(dict(zip(gathered, values)), float(total), passed)

    def _pass(self, objective: Objective, completions: Sequence[Completion], denominator: float, counts: bool) -> Pass:
        """One micro-batch. The ranks run its backward pass together or not at all, and its graph is freed afterwards.

        counts: whether it contributes to the gradient; if not, the routes of its completions may be on another rank.
        """
        batch = layout.build(completions, self.policy.shares_prompts)
        out = self.policy.forward(batch, entropy=True, routing=True, replay=self.replay and counts)
        leaves = cut(out)
        terms, stats = objective.terms(leaves, batch.to(self.policy.device))
        loss = terms.sum() / denominator
        with in_one_order(self.policy.device):
            loss.backward()
        gradients = stopped(out, leaves)
        if not counts:
            gradients = [(x, torch.zeros_like(gradient)) for x, gradient in gradients]
        passes = self.micro_batches.ranks.any(counts and worth_passing(gradients))
        if passes:
            with in_one_order(self.policy.device):
                torch.autograd.backward([x for x, _ in gradients], [gradient for _, gradient in gradients])
        return Pass(loss.detach(), stats, passes, len(batch.node))


class Pass(NamedTuple):
    """Result of a micro-batch."""

    loss: Tensor  # its part of the loss
    stats: Stats
    passes: bool  # whether its backward pass was run
    tokens: int  # sampled ones


class Share(NamedTuple):
    """A rank's share of an update."""

    stats: Stats  # of what it read
    loss: float  # its part of the loss
    passed: int  # sampled tokens whose backward pass it ran


def active(objective: Objective, completions: Sequence[Completion]) -> list[int]:
    """Indices of the completions that an update reads: all but idle ones."""
    return [i for i, c in enumerate(completions) if not objective.idle(c)]


def cut(out: Outputs) -> Outputs:
    """The outputs detached from the policy's graph: gradients stop here, and `stopped` collects them."""

    def leaf(x: Tensor | None) -> Tensor | None:
        return x if x is None or not x.requires_grad else x.detach().requires_grad_()

    routing = None if out.routing is None else out.routing._replace(logits=leaf(out.routing.logits))
    logp = leaf(out.logp)
    assert logp is not None
    return Outputs(logp, leaf(out.entropy), routing, leaf(out.values))


def stopped(out: Outputs, leaves: Outputs) -> list[tuple[Tensor, Any]]:
    """Each of the policy's outputs whose leaf has a gradient, with that gradient."""
    pairs = [(out.logp, leaves.logp), (out.entropy, leaves.entropy), (out.values, leaves.values)]
    if out.routing is not None and leaves.routing is not None:
        pairs.append((out.routing.logits, leaves.routing.logits))
    return [(x, leaf.grad) for x, leaf in pairs if x is not None and leaf is not None and leaf.grad is not None]


def worth_passing(gradients: Sequence[tuple[Tensor, Any]]) -> bool:
    """Whether the policy's backward pass would contribute anything. For a gradient [N] this caches the non-zero indices,
    which the head's backward pass needs again. A gradient of router logits is taken to contribute: to look would make the
    host wait once more.
    """
    return any(gradient.ndim > 1 or len(nonzero(gradient)) > 0 for _, gradient in gradients)
