"""Reads completions with a policy: forward passes without gradient, in micro-batches.

Each rank keeps its own readings, by index of the completion. Rank 0 can gather them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gspo.distributed.ranks import Ranks
from gspo.learner import layout
from gspo.learner.device_to_host import on_host
from gspo.learner.interfaces import Policy
from gspo.learner.memory import MicroBatches, Readers
from gspo.types import Completion, Reading


def read(policy: Policy, completions: Sequence[Completion], micro_batches: MicroBatches, **options: Any) -> list[Reading]:
    """The readings of these completions, in order, on rank 0; [] on other ranks. `options` as in `read_here`."""
    return collected(read_here(policy, completions, micro_batches, **options), completions, micro_batches.ranks)


def read_as_sampled(policy: Policy, completions: Sequence[Completion], micro_batches: MicroBatches) -> list[Reading]:
    """As `read`, replaying the experts that sampled the completions if all are known."""
    known = all(completion.routes is not None for completion in completions)
    follows = policy.sparse and micro_batches.ranks.gathered(known)[0]
    readers = micro_batches.readers(completions, policy.shares_prompts)
    if follows:
        completions = where_read(completions, readers, micro_batches.ranks)
    return read(policy, completions, micro_batches, routing=follows, replay=follows, readers=readers)


@torch.no_grad()
def read_here(
    policy: Policy,
    completions: Sequence[Completion],
    micro_batches: MicroBatches,
    *,
    routing: bool = False,
    replay: bool = False,
    entropy: bool = False,
    readers: Readers | None = None,
) -> dict[int, Reading]:
    """The readings of this rank's share of the completions, by index. routing: include the experts that the routers would
    choose. replay: routers use the completions' routes. entropy: include entropies.
    """

    def work() -> dict[int, Reading]:
        readings: dict[int, Reading] = {}
        for indices, counts in micro_batches.deal(completions, policy.shares_prompts, readers):
            read = _micro_batch(policy, [completions[i] for i in indices], routing, replay and counts, entropy)
            readings |= zip(indices, read) if counts else ()
        return readings

    return micro_batches.attempt(work, completions, policy.shares_prompts)


def _micro_batch(
    policy: Policy, completions: Sequence[Completion], routing: bool, replay: bool, entropy: bool
) -> list[Reading]:
    batch = layout.build(completions, policy.shares_prompts)
    out = policy.forward(batch, entropy=entropy, routing=routing, replay=replay)
    lengths, nothing = batch.length.tolist(), [None] * len(completions)
    given = {"logp": out.logp, "values": out.values, "routes": None if out.routing is None else out.routing.own}
    given |= {"entropy": out.entropy if entropy else None}
    known = {name: x for name, x in given.items() if x is not None}
    host = dict(zip(known, on_host(list(known.values()))))
    logps = host["logp"].split(lengths)
    values, entropies = (host[name].split(lengths) if name in host else nothing for name in ("values", "entropy"))
    sizes = [len(completion.tokens) for completion in completions]
    routes = host["routes"][batch.path].split(sizes) if "routes" in host else nothing
    return [Reading(*reading) for reading in zip(logps, routes, values, entropies)]


def collected(here: Mapping[int, Reading], completions: Sequence[Completion], ranks: Ranks) -> list[Reading]:
    """Gathers the readings of all ranks, in the order of the completions, on rank 0; [] on other ranks."""
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
    """Number of tokens that this column of a reading covers."""
    return len(completion.tokens if column == "routes" else completion.logp_mu)


def where_read(completions: Sequence[Completion], readers: Readers, ranks: Ranks) -> list[Completion]:
    """These completions, each with its routes only on the rank that reads it. Scatters rank 0's routes."""
    if ranks.size == 1:
        return list(completions)
    parts: list[dict[int, Tensor]] = [
        {i: routes for i in mine if (routes := completions[i].routes) is not None} for mine in readers
    ]
    here = ranks.from_leader(parts)
    return [replace(completion, routes=here.get(i)) for i, completion in enumerate(completions)]
