"""Mismatch between sampler and trainer at the same weights: log-probabilities and experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from gspo.learner import layout
from gspo.learner.routing_metrics import mean_of
from gspo.objective.completions import Completions
from gspo.objective.mismatch import mismatch
from gspo.objective.routing import changed
from gspo.types import Completion, Metrics, Reading, Stats


def paired(completions: Sequence[Completion], readings: Sequence[Reading]) -> tuple[torch.Tensor, torch.Tensor, Completions]:
    """log pi and log mu of the same tokens, each [N], and the completions that they belong to."""
    length = torch.tensor([len(reading.logp) for reading in readings])
    y = Completions.of(length, torch.cat([layout.turns(completion) for completion in completions]))
    logp, logp_mu = (torch.cat(each) for each in ([r.logp for r in readings], [c.logp_mu for c in completions]))
    return logp, logp_mu, y


def disagreement(
    completions: Sequence[Completion], readings: Sequence[Reading], others: Sequence[Others | None] | None = None
) -> Metrics:
    """Mismatch metrics, from readings of completions that were sampled by the policy's current weights.

    moe/sampler_agreement: share of the sampler's expert choices that the trainer makes too, over the tokens that the sampled
    ones were predicted from. others: expert choices of each rank's completions; None: computed from `readings`.
    """
    metrics: Metrics = mismatch(*paired(completions, readings))
    known = [one for one in (others or [other_experts(completions, readings)]) if one is not None]
    if len(known) == len(others or known) and (choices := sum(one.choices for one in known)):
        metrics["moe/sampler_agreement"] = 1 - float(torch.tensor(sum(one.differ for one in known)) / choices)
    return metrics


class Others(NamedTuple):
    """Expert choices of the sampler; the k choices of a token count as one."""

    differ: float  # those that the trainer does not make
    choices: int


def other_experts(completions: Sequence[Completion], readings: Sequence[Reading]) -> Others | None:
    """Expert choices in these completions; None if the experts of any completion are unknown."""
    shares = [torch.zeros(0)]
    for completion, reading in zip(completions, readings):
        if completion.routes is None or reading.routes is None:
            return None
        shares.append(changed(completion.routes, reading.routes)[before(completion)].flatten())
    flat = torch.cat(shares)
    return Others(float(flat.sum()), len(flat))


def before(completion: Completion) -> torch.Tensor:
    """Indices of the tokens that the sampled ones were predicted from."""
    return layout.parents(completion)[completion.sampled]


def first_look(stats: Stats) -> Metrics:
    """The same metrics, from the statistics of an update on completions that the same weights sampled."""
    metrics: Metrics = mismatch(stats["logp"], stats["logp_mu"], Completions.of(stats["length"]))
    differ = mean_of(stats, "overruled" if "overruled" in stats else "changed")  # during replay, the routers' own choices
    if differ is not None:
        metrics["moe/sampler_agreement"] = 1 - differ
    return metrics
