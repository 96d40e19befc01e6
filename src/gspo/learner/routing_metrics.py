"""What the metrics of an update say of the experts: volatility, load and entropy of the routers."""

from __future__ import annotations

from typing import Any

import torch

from gspo.objective.routing import changed, max_violation
from gspo.types import Batch, Routing, Stats


def routing_stats(routing: Routing, batch: Batch) -> Stats:
    """Statistics [N, layers(, k)] at the tokens that the N sampled ones were predicted from.

    changed: share of pi_old's k experts that were not used now. overruled: share of the experts that the routers would
    have chosen and, replaying, did not.
    """
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


def routing_metrics(stats: Stats) -> dict[str, Any]:
    """moe/volatility: share of pi_old's choices of experts that pi_theta does not make, for the same tokens, mean and by
    layer; moe/tokens_changed: share of tokens with a change in at least one layer. moe/overruled: share of the routers'
    own choices that Routing Replay set aside. moe/max_violation: load of the busiest expert over the mean load, minus 1,
    mean over layers. moe/router_entropy: nats. moe/aux_loss: before its weight. {} for a dense model.
    """
    if "routes" not in stats:
        return {}
    metrics: dict[str, Any] = {
        "moe/max_violation": max_violation(stats["routes"].transpose(0, 1), int(stats["experts"][0])),
        "moe/router_entropy": float(stats["router_entropy"].mean()),
    }
    if "balance" in stats:
        metrics["moe/aux_loss"] = float(stats["balance"].mean())
    if "overruled" in stats:
        metrics["moe/overruled"] = float(stats["overruled"].mean())
    if "changed" in stats:
        changed = stats["changed"]
        metrics |= {
            "moe/volatility": float(changed.mean()),
            "moe/volatility_by_layer": changed.mean(0).tolist(),
            "moe/tokens_changed": float((changed > 0).any(1).float().mean()),
        }
    return metrics
