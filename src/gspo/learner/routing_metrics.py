"""Routing metrics of an update: volatility, load and entropy of the routers."""

from __future__ import annotations

from typing import Any

import torch

from gspo.objective.routing import changed, loads, max_violation
from gspo.types import Batch, Routing, Stats

BY_LAYER = ("router_entropy", "overruled", "changed")  # [N, layers]


def routing_stats(routing: Routing, batch: Batch) -> Stats:
    """Statistics [N, layers(, k)] at the tokens before the N sampled ones; `changed` and `overruled` as in the metrics."""
    at = batch.forest.parent[batch.node]
    used = routing.chosen[at]
    stats = {
        "routes": used,
        "router_entropy": routing.entropy[at],
        "experts": torch.full_like(batch.completion, routing.experts),
    }
    if routing.own is not routing.chosen:
        stats["overruled"] = changed(routing.own[at], used)
    if batch.routes is not None:
        stats["changed"] = changed(batch.routes[at], used)
    return stats


def routing_sums(stats: Stats) -> Stats:
    """The statistics with routes and per-layer values summed over a rank's tokens, so that a rank does not send gigabytes of
    routes. Sums of several ranks are concatenated.

    load [1, layers, experts] int64: tokens per expert. tokens [1]: number of tokens. router_entropy, overruled, changed [1]:
    sums. changed_by_layer [1, layers], tokens_changed [1]: as in `routing_metrics`.
    """
    if "routes" not in stats:
        return stats
    sums = {name: stats[name].sum()[None] for name in BY_LAYER if name in stats}
    sums["load"] = loads(stats["routes"].transpose(0, 1), int(stats["experts"][0]))[None]
    sums["tokens"] = torch.tensor([len(stats["routes"])])
    if "changed" in stats:
        sums["changed_by_layer"] = stats["changed"].sum(0)[None]
        sums["tokens_changed"] = (stats["changed"] > 0).any(1).float().sum()[None]
    return {name: x for name, x in stats.items() if name not in ("routes", "experts", *BY_LAYER)} | sums


def mean_of(sums: Stats, name: str) -> float | None:
    """Mean over tokens and layers of one of BY_LAYER; None if it is unknown."""
    return None if name not in sums else float(sums[name].sum() / (int(sums["tokens"].sum()) * sums["load"].shape[1]))


def routing_metrics(stats: Stats) -> dict[str, Any]:
    """Metrics from the output of `routing_sums`; {} for a dense model.

    moe/volatility: share of pi_old's expert choices that pi_theta does not make for the same tokens, mean and by layer.
    moe/tokens_changed: share of tokens with a change in at least one layer. moe/overruled: share of the routers' own choices
    that Routing Replay replaced. moe/max_violation: load of the busiest expert divided by the mean load, minus 1; mean over
    layers. moe/router_entropy: nats. moe/aux_loss: before its weight.
    """
    if "load" not in stats:
        return {}
    tokens = int(stats["tokens"].sum())
    metrics: dict[str, Any] = {
        "moe/max_violation": max_violation(stats["load"].sum(0)),
        "moe/router_entropy": mean_of(stats, "router_entropy"),
    }
    if "balance" in stats:
        metrics["moe/aux_loss"] = float(stats["balance"].mean())
    if "overruled" in stats:
        metrics["moe/overruled"] = mean_of(stats, "overruled")
    if "changed" in stats:
        metrics |= {
            "moe/volatility": mean_of(stats, "changed"),
            "moe/volatility_by_layer": (stats["changed_by_layer"].sum(0) / tokens).tolist(),
            "moe/tokens_changed": float(stats["tokens_changed"].sum() / tokens),
        }
    return metrics
