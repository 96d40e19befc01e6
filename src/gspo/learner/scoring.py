"""What a policy says of completions, without gradient, micro-batch by micro-batch.

On several ranks each keeps what it has read, under the number of the completion. The one that leads may ask for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gspo.distributed.ranks import Ranks
from gspo.learner import layout
from gspo.learner.device_to_host import on_host
from gspo.learner.interfaces import Policy
from gspo.learner.memory import MicroBatches, Readers
from gspo.types import Completion, Reading


def read(
    policy: Policy,
    completions: Sequence[Completion],
    micro_batches: MicroBatches,
    *,
    routing: bool = False,
    replay: bool = False,
    readers: Readers | None = None,
) -> list[Reading]:
    """The readings of these completions, in their order, for the rank that leads; [] for the others. As `read_here`."""
    here = read_here(policy, completions, micro_batches, routing=routing, replay=replay, readers=readers)
    return collected(here, completions, micro_batches.ranks)


@torch.no_grad()
def read_here(
    policy: Policy,
    completions: Sequence[Completion],
    micro_batches: MicroBatches,
    *,
    routing: bool = False,
    replay: bool = False,
    readers: Readers | None = None,
) -> dict[int, Reading]:
    """The readings of those that this rank reads, by number. Raises RuntimeError where memory does not suffice for one.

    routing: with the experts that the routers would choose. replay: routers take those of the completions' routes. readers:
    as in MicroBatches.deal.
    """

    def work() -> dict[int, Reading]:
        readings: dict[int, Reading] = {}
        for part in micro_batches.deal(completions, policy.shares_prompts, readers):
            read = _micro_batch(policy, [completions[i] for i in part.indices], routing, replay and part.counts)
            readings |= zip(part.indices, read) if part.counts else ()
        return readings

    return micro_batches.attempt(work, completions, policy.shares_prompts)


def _micro_batch(policy: Policy, completions: Sequence[Completion], routing: bool, replay: bool) -> list[Reading]:
    batch = layout.build(completions, policy.shares_prompts)
    out = policy.forward(batch, routing=routing, replay=replay)
    lengths, nothing = batch.length.tolist(), [None] * len(completions)
    given = {"logp": out.logp, "values": out.values, "routes": None if out.routing is None else out.routing.own}
    known = {name: x for name, x in given.items() if x is not None}
    host = dict(zip(known, on_host(list(known.values()))))
    logps = host["logp"].split(lengths)
    values = host["values"].split(lengths) if "values" in host else nothing
    routes = nothing
    if "routes" in host:
        routes = host["routes"][batch.path].split([len(completion.tokens) for completion in completions])
    return [Reading(*reading) for reading in zip(logps, routes, values)]


def collected(here: Mapping[int, Reading], completions: Sequence[Completion], ranks: Ranks) -> list[Reading]:
    """What all ranks have read of these completions, in their order, for the one that leads; [] for the others."""
    if ranks.size == 1:
        return [here[i] for i in range(len(completions))]
    known = [name for name in Reading._fields if any(getattr(reading, name) is not None for reading in here.values())]
    mine = {name: torch.cat([getattr(reading, name) for reading in here.values()]) for name in known}
    readings: dict[int, Reading] = {}
    for part in ranks.to_leader(mine | {"at": torch.tensor(list(here), dtype=torch.int64)}):
        at: list[int] = part.pop("at").tolist()
        columns = {name: x.split([_length(completions[i], name) for i in at]) for name, x in part.items()}
        readings |= {i: Reading(**{name: column[n] for name, column in columns.items()}) for n, i in enumerate(at)}
    return [readings[i] for i in range(len(readings))]


def _length(completion: Completion, column: str) -> int:
    """How many tokens this column of a reading describes."""
    return len(completion.tokens if column == "routes" else completion.logp_mu)


def where_read(completions: Sequence[Completion], readers: Readers, ranks: Ranks) -> list[Completion]:
    """These completions, with their routes on the rank that reads them alone. They come from the one that leads."""
    if ranks.size == 1:
        return list(completions)
    parts: list[dict[int, Tensor]] = [
        {i: routes for i in mine if (routes := completions[i].routes) is not None} for mine in readers
    ]
    here = ranks.from_leader(parts)
    return [replace(completion, routes=here.get(i)) for i, completion in enumerate(completions)]
