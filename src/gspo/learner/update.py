"""One update: count, forward, backward, step.

The denominator is one number for the whole update, known before the first forward pass, so that micro-batches, their
order and the number of processes change no gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
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
    """Makes updates of a policy with its optimizer.

    replay: updates use the experts of their completions' routes (Routing Replay). skipped: what the last update left out, as
    shares of its sampled tokens: of idle completions, and of other micro-batches' backward passes.
    """

    def __init__(self, policy: Policy, optimizer: Optimizer, micro_batches: MicroBatches, replay: bool = False) -> None:
        self.policy, self.optimizer, self.micro_batches, self.replay = policy, optimizer, micro_batches, replay
        self.skipped: dict[str, float] = {}

    def update(
        self, objective: Objective, completions: Sequence[Completion], readers: Readers | None = None
    ) -> tuple[Metrics, Stats]:
        """One optimizer step on these completions. Returns its metrics and the statistics behind them. Where memory does not
        suffice, micro-batches are halved and all is done again; RuntimeError where that does not help either.

        readers: which rank reads which of the `active` ones. Only the rank that leads gets the statistics of all, and what
        they tell.
        """
        tried = [completions[i] for i in active(objective, completions)]

        def work() -> Share:
            return self._gradient(objective, completions, tried, readers)

        mine = self.micro_batches.attempt(work, tried, self.policy.shares_prompts, self.optimizer.clear)
        ranks = self.micro_batches.ranks
        every = ranks.gathered(mine._replace(stats={}))
        parts = [part for part in ranks.to_leader(objective.condensed(mine.stats) if mine.stats else {}) if part]
        total = sum(share.loss for share in every)
        with outside_of_passes("in AdamW's step", ranks):
            metrics = {"loss": total} | self.optimizer.step(total)
        stats = {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else ())}
        tokens, read = (sum(len(completion.logp_old) for completion in some) for some in (completions, tried))
        passed = sum(share.passed for share in every)
        self.skipped = {"skipped/completions": 1 - read / tokens, "skipped/backward": (read - passed) / tokens}
        return metrics | (objective.summary(stats, completions) if stats else {}), stats

    def _gradient(
        self, objective: Objective, completions: Sequence[Completion], tried: Sequence[Completion], readers: Readers | None
    ) -> Share:
        """Adds up the gradient of an update, of which this is one rank's share.

        What has exactly zero gradient is left out: idle completions altogether, and the backward pass of micro-batches. The
        denominator counts them, so the gradient is that of the whole. One backward pass is always run: the optimizer then
        sees zeros, as it would have, and not nothing.
        """
        denominator = objective.denominator(completions)
        gathered: dict[str, list[Tensor]] = defaultdict(list)
        losses, passed, any_passed = list[Tensor](), 0, False
        for part in self.micro_batches.deal(tried, self.policy.shares_prompts, readers):
            must = part.last and not any_passed
            done = self._pass(objective, [tried[i] for i in part.indices], denominator, must, part.counts)
            any_passed |= done.passes
            if part.counts:
                passed += done.tokens if done.passes else 0
                losses.append(done.loss)
                for name, value in done.stats.items():
                    gathered[name].append(value)
        total = torch.zeros((), dtype=torch.float64)
        *values, lost = on_host([*map(torch.cat, gathered.values()), torch.stack(losses or [total])])
        for loss in lost:
            total += loss.double()
        return Share(dict(zip(gathered, values)), float(total), passed)

    def _pass(
        self, objective: Objective, completions: Sequence[Completion], denominator: float, must: bool, counts: bool
    ) -> Pass:
        """One micro-batch. must: its backward pass is run even if all gradients are zero. counts: whether it adds anything.
        The ranks run a backward pass together or not at all. Nothing of its graph outlives it. Routes of a completion that
        does not count may be elsewhere.
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
        passes = must or self.micro_batches.ranks.any(worth_passing(gradients))
        if passes:
            with in_one_order(self.policy.device):
                torch.autograd.backward([x for x, _ in gradients], [gradient for _, gradient in gradients])
        return Pass(loss.detach(), stats, passes, len(batch.node))


class Pass(NamedTuple):
    """What a micro-batch gave: its part of the loss, its statistics, whether its backward pass was run, and its sampled
    tokens.
    """

    loss: Tensor
    stats: Stats
    passes: bool
    tokens: int


class Share(NamedTuple):
    """What a rank did in an update: statistics of what it read, its part of the loss, and the sampled tokens whose backward
    pass it ran.
    """

    stats: Stats
    loss: float
    passed: int


def active(objective: Objective, completions: Sequence[Completion]) -> list[int]:
    """Which completions an update reads: all but idle ones, or all where all are idle."""
    return [i for i, c in enumerate(completions) if not objective.idle(c)] or list(range(len(completions)))


def cut(out: Outputs) -> Outputs:
    """The same, cut off from the policy: gradients stop here, where `stopped` finds them."""

    def leaf(x: Tensor | None) -> Tensor | None:
        return x if x is None or not x.requires_grad else x.detach().requires_grad_()

    routing = None if out.routing is None else out.routing._replace(logits=leaf(out.routing.logits))
    logp = leaf(out.logp)
    assert logp is not None
    return Outputs(logp, leaf(out.entropy), routing, leaf(out.values))


def stopped(out: Outputs, leaves: Outputs) -> list[tuple[Tensor, Any]]:
    """Each of the policy's outputs that has a gradient at its leaf, and that gradient."""
    pairs = [(out.logp, leaves.logp), (out.entropy, leaves.entropy), (out.values, leaves.values)]
    if out.routing is not None and leaves.routing is not None:
        pairs.append((out.routing.logits, leaves.routing.logits))
    return [(x, leaf.grad) for x, leaf in pairs if x is not None and leaf is not None and leaf.grad is not None]


def worth_passing(gradients: Sequence[tuple[Tensor, Any]]) -> bool:
    """Whether the policy's backward pass would add anything. Of a gradient [N] it finds the places that do, which the head's
    own backward pass asks for again.
    """
    return any(len(nonzero(gradient)) > 0 if gradient.ndim == 1 else bool(gradient.any()) for _, gradient in gradients)
