"""Metrics of experts, by hand."""

import pytest
import torch

from gspo.learner import layout
from gspo.learner.routing_metrics import routing_metrics, routing_stats
from gspo.types import Completion, Routing


def batch(routes):
    tokens = torch.tensor([1, 2, 3, 4])
    return layout.build([Completion(tokens, tokens > 2, torch.zeros(2), torch.zeros(2), 1.0, routes=routes)])


def routing(chosen, own=None):
    chosen = torch.tensor(chosen, dtype=torch.int16)
    own = chosen if own is None else torch.tensor(own, dtype=torch.int16)
    return Routing(chosen, own, torch.full(chosen.shape[:2], 0.5), 4)


ROUTES = [[[0, 1]], [[0, 1]], [[2, 3]], [[-1, -1]]]  # of 4 tokens, 1 layer, 2 experts


def test_what_changed_is_counted_where_sampled_tokens_were_predicted():
    stats = routing_stats(routing([[[0, 1]], [[1, 2]], [[3, 2]], [[0, 1]]]), batch(torch.tensor(ROUTES, dtype=torch.int16)))
    metrics = routing_metrics(stats)
    assert metrics["moe/volatility"] == 0.25 and metrics["moe/tokens_changed"] == 0.5  # 1 of 2 tokens, 1 of its 2 experts
    assert metrics["moe/volatility_by_layer"] == [0.25] and metrics["moe/router_entropy"] == 0.5
    assert metrics["moe/max_violation"] == pytest.approx(1.0)  # experts 1, 2, 2, 3: twice the mean
    assert "moe/overruled" not in metrics


def test_replay_says_what_it_overruled():
    ours = routing([[[0, 1]], [[0, 1]], [[2, 3]], [[0, 1]]], own=[[[0, 1]], [[0, 2]], [[2, 3]], [[0, 1]]])
    metrics = routing_metrics(routing_stats(ours, batch(torch.tensor(ROUTES, dtype=torch.int16))))
    assert metrics["moe/overruled"] == 0.25 and metrics["moe/volatility"] == 0


def test_a_dense_model_has_none():
    assert routing_metrics({}) == {}
