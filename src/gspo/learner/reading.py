"""What a policy says of completions, without gradient, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gspo.learner import layout
from gspo.learner.memory import MicroBatches
from gspo.learner.ports import Policy
from gspo.types import Completion, Reading


@torch.no_grad()
def read(
    policy: Policy, completions: Sequence[Completion], micro_batches: MicroBatches, *, routing: bool = False,
    replay: bool = False,
) -> list[Reading]:  # fmt: skip
    """The readings of these completions, in their order. Raises RuntimeError where memory does not suffice for one.

    routing: with the experts that the routers would choose. replay: routers take those of the completions' routes.
    """

    def work() -> list[Reading]:
        readings: dict[int, Reading] = {}
        for part in micro_batches.deal(completions, policy.shares_prompts):
            read = _micro_batch(policy, [completions[i] for i in part.indices], routing, replay)
            readings |= zip(part.indices, read) if part.counts else ()
        for others in micro_batches.ranks.gathered(readings):
            readings |= others
        return [readings[i] for i in range(len(completions))]

    return micro_batches.attempt(work, completions, policy.shares_prompts)


def _micro_batch(policy: Policy, completions: Sequence[Completion], routing: bool, replay: bool) -> list[Reading]:
    batch = layout.build(completions, policy.shares_prompts)
    out = policy.forward(batch, routing=routing, replay=replay)
    lengths, nothing = batch.length.tolist(), [None] * len(completions)
    logps = out.logp.cpu().split(lengths)
    values = nothing if out.values is None else out.values.cpu().split(lengths)
    routes = nothing
    if out.routing is not None:
        routes = out.routing.own.cpu()[batch.path].split([len(completion.tokens) for completion in completions])
    return [Reading(*reading) for reading in zip(logps, routes, values)]
