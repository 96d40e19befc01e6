"""One update: count, forward, backward, step.

The denominator is one number for the whole update, known before the first forward pass, so that micro-batches, their
order and the number of processes change no gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gspo.learner import layout
from gspo.learner.memory import MicroBatches
from gspo.learner.optimizer import Optimizer
from gspo.learner.ports import Objective, Policy
from gspo.types import Completion, Metrics, Outputs, Stats


class Updater:
    """Makes updates of a policy with its optimizer.

    replay: updates use the experts of their completions' routes (Routing Replay). skipped: what the last update left out, as
    shares of its sampled tokens: of idle completions, and of other micro-batches' backward passes.
    """

    def __init__(self, policy: Policy, optimizer: Optimizer, micro_batches: MicroBatches, replay: bool = False) -> None:
        self.policy, self.optimizer, self.micro_batches, self.replay = policy, optimizer, micro_batches, replay
        self.skipped: dict[str, float] = {}

    def update(self, objective: Objective, completions: Sequence[Completion]) -> tuple[Metrics, Stats]:
        """One optimizer step on these completions. Returns its metrics and the statistics behind them. Where memory does not
        suffice, micro-batches are halved and all is done again; RuntimeError where that does not help either.
        """
        active = [completion for completion in completions if not objective.idle(completion)] or list(completions)

        def work() -> tuple[dict[str, list[Tensor]], float]:
            return self._gradient(objective, completions, active)

        gathered, total = self.micro_batches.attempt(work, active, self.policy.shares_prompts, self.optimizer.clear)
        stepped = self.optimizer.step(total)
        stats = {name: torch.cat(values).cpu() for name, values in gathered.items()}
        return {"loss": total} | objective.summary(stats, completions) | stepped, stats

    def _gradient(
        self, objective: Objective, completions: Sequence[Completion], active: Sequence[Completion]
    ) -> tuple[dict[str, list[Tensor]], float]:
        """Adds up the gradient of an update. Returns its statistics, micro-batch by micro-batch, and the loss.

        What has exactly zero gradient is left out: idle completions altogether, and the backward pass of micro-batches. The
        denominator counts them, so the gradient is that of the whole. One backward pass is always run: the optimizer then
        sees zeros, as it would have, and not nothing.
        """
        denominator = objective.denominator(completions)
        gathered: dict[str, list[Tensor]] = defaultdict(list)
        total = torch.zeros((), dtype=torch.float64)
        read = passed = 0  # completions whose forward pass was run, tokens whose backward pass was
        for part in self.micro_batches.deal(active, self.policy.shares_prompts):
            read += len(part)
            must = read == len(active) and not passed
            loss, stats, tokens = self._pass(objective, [active[i] for i in part], denominator, must)
            passed += tokens
            total += loss.cpu().double()
            for name, value in stats.items():
                gathered[name].append(value)
        every, tried = (sum(len(completion.logp_old) for completion in some) for some in (completions, active))
        self.skipped = {"skipped/completions": 1 - tried / every, "skipped/backward": (tried - passed) / every}
        return gathered, float(total)

    def _pass(
        self, objective: Objective, completions: Sequence[Completion], denominator: float, must: bool
    ) -> tuple[Tensor, Stats, int]:
        """One micro-batch's part of the loss, its statistics, and the tokens whose backward pass was run. must: it is run
        even if all gradients are zero. Nothing of its graph outlives it.
        """
        batch = layout.build(completions, self.policy.shares_prompts)
        out = self.policy.forward(batch, entropy=True, routing=True, replay=self.replay)
        leaves = cut(out)
        terms, stats = objective.terms(leaves, batch.to(self.policy.device))
        loss = terms.sum() / denominator
        loss.backward()
        gradients = stopped(out, leaves)
        if must or worth_passing(gradients):
            torch.autograd.backward([x for x, _ in gradients], [gradient for _, gradient in gradients])
            return loss.detach(), stats, len(batch.node)
        return loss.detach(), stats, 0


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
    """Whether the policy's backward pass would add anything. Decided here alone: processes must agree on it."""
    return any(bool(gradient.any()) for _, gradient in gradients)
