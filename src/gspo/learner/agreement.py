"""How far the sampler and the trainer disagree at the same weights: likelihoods, and experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gspo.learner import layout
from gspo.objective.completions import Completions
from gspo.objective.mismatch import mismatch
from gspo.objective.routing import changed
from gspo.types import Completion, Metrics, Reading, Stats


def paired(
    completions: Sequence[Completion], readings: Sequence[Reading]
) -> tuple[torch.Tensor, torch.Tensor, Completions]:  # fmt: skip
    """What the policy and the sampler say of the same tokens, log pi and log mu [N], and whose tokens they are."""
    length = torch.tensor([len(reading.logp) for reading in readings])
    y = Completions.of(length, torch.cat([layout.turns(completion) for completion in completions]))
    logp, logp_mu = (torch.cat(each) for each in ([r.logp for r in readings], [c.logp_mu for c in completions]))
    return logp, logp_mu, y


def disagreement(completions: Sequence[Completion], readings: Sequence[Reading]) -> Metrics:
    """Metrics of it, from a reading of completions that the policy's present weights sampled.

    moe/sampler_agreement: share of the sampler's choices of experts that the trainer makes too, of the tokens that the
    sampled ones were predicted from.
    """
    metrics: Metrics = mismatch(*paired(completions, readings))
    routes = [(completion.routes, reading.routes) for completion, reading in zip(completions, readings)]
    if all(theirs is not None and ours is not None for theirs, ours in routes):
        shares = [changed(theirs, ours)[before(one)] for (theirs, ours), one in zip(routes, completions)]  # type: ignore[arg-type]
        metrics["moe/sampler_agreement"] = 1 - float(torch.cat(shares).mean())
    return metrics


def before(completion: Completion) -> torch.Tensor:
    """The places of the tokens that the sampled ones were predicted from."""
    return layout.parents(completion)[completion.sampled]


def first_look(stats: Stats) -> Metrics:
    """The same metrics, from an update whose completions the same weights sampled."""
    metrics: Metrics = mismatch(stats["logp"], stats["logp_mu"], Completions.of(stats["length"]))
    differ = stats.get("overruled", stats.get("changed"))  # replaying the sampler's experts, the routers' own show it
    if differ is not None:
        metrics["moe/sampler_agreement"] = 1 - float(differ.mean())
    return metrics
