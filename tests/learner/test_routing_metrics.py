"""Metrics of experts, by hand."""

import pytest
import torch

from gspo.learner import layout
from gspo.learner.routing_metrics import routing_metrics, routing_stats, routing_sums
from gspo.types import Completion, Routing


def routing(chosen, own=None):
    chosen = torch.tensor(chosen, dtype=torch.int16)
    own = chosen if own is None else torch.tensor(own, dtype=torch.int16)
    return Routing(chosen, own, torch.full(chosen.shape[:2], 0.5), 4)


ROUTES = torch.tensor([[[0, 1]], [[0, 1]], [[2, 3]], [[-1, -1]]], dtype=torch.int16)  # of 4 tokens, 1 layer, 2 experts


def metrics_of(routing):
    tokens = torch.tensor([1, 2, 3, 4])
    batch = layout.build([Completion(tokens, tokens > 2, torch.zeros(2), torch.zeros(2), 1.0, routes=ROUTES)])
    return routing_metrics(routing_sums(routing_stats(routing, batch)))


def test_what_changed_is_counted_where_sampled_tokens_were_predicted():
    metrics = metrics_of(routing([[[0, 1]], [[1, 2]], [[3, 2]], [[0, 1]]]))
    assert metrics["moe/volatility"] == 0.25 and metrics["moe/tokens_changed"] == 0.5  # 1 of 2 tokens, 1 of its 2 experts
    assert metrics["moe/volatility_by_layer"] == [0.25] and metrics["moe/router_entropy"] == 0.5
    assert metrics["moe/max_violation"] == pytest.approx(1.0)  # experts 1, 2, 2, 3: twice the mean
    assert "moe/overruled" not in metrics


def test_replay_says_what_it_overruled():
    ours = routing([[[0, 1]], [[0, 1]], [[2, 3]], [[0, 1]]], own=[[[0, 1]], [[0, 2]], [[2, 3]], [[0, 1]]])
    metrics = metrics_of(ours)
    assert metrics["moe/overruled"] == 0.25 and metrics["moe/volatility"] == 0


def test_a_dense_model_has_none():
    assert routing_metrics(routing_sums({"kl": torch.ones(2)})) == {}


def test_sums_of_ranks_one_after_the_other_say_what_all_tokens_say_and_hold_no_routes():
    draw = torch.Generator().manual_seed(0)
    shapes = {"router_entropy": (9, 3), "overruled": (9, 3), "changed": (9, 3)}
    stats = {name: torch.rand(shape, generator=draw) for name, shape in shapes.items()}
    stats["changed"] = (stats["changed"] * 2).round() / 2
    stats["routes"] = torch.rand((9, 3, 4), generator=draw).argsort(-1)[..., :2].to(torch.int16)
    stats["experts"] = torch.full((9,), 4)
    ranks = [routing_sums({name: x[part] for name, x in stats.items()}) for part in (slice(0, 2), slice(2, 9))]
    joined = {name: torch.cat([sums[name] for sums in ranks]) for name in ranks[0]}
    expected = routing_metrics(routing_sums(stats))
    by_layer = expected.pop("moe/volatility_by_layer")
    metrics = routing_metrics(joined)
    assert metrics.pop("moe/volatility_by_layer") == pytest.approx(by_layer) == stats["changed"].mean(0).tolist()
    assert metrics == pytest.approx(expected) and all(len(x) == 1 for x in ranks[0].values())
    # ... and of one process bit for bit what the means of all are
    for name, of in (("volatility", "changed"), ("overruled", "overruled"), ("router_entropy", "router_entropy")):
        assert expected[f"moe/{name}"] == float(stats[of].mean())
    assert expected["moe/tokens_changed"] == float((stats["changed"] > 0).any(1).float().mean())
