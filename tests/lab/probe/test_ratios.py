"""What log-ratios are like: against plain loops, and laws that are known."""

import math

import numpy as np
import pytest
import torch
from probe.ratios import by_length, clipped_shares, describe, exponent, tail_index

from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig
from gspo.learner.objective import PolicyObjective
from gspo.objective.completions import Completions


def ragged(lengths, values=None, seed=0):
    y = Completions.of(torch.tensor(lengths))
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(sum(lengths), generator=g, dtype=torch.float64) if values is None else torch.tensor(values)), y


def test_figures_against_plain_loops():
    l, y = ragged([3, 5, 2])
    l = 0.3 * l
    told = describe(l, y)
    parts = [part.numpy() for part in l.split([3, 5, 2])]
    means, w = [part.mean() for part in parts], np.exp(l.numpy())
    assert told["sd_token"] == pytest.approx(np.std(l.numpy(), ddof=1))
    assert told["sd_completion"] == pytest.approx(np.std(means, ddof=1))
    assert told["drift"] == pytest.approx(np.mean(means))
    assert told["kl"] == pytest.approx(np.mean(w - 1 - l.numpy()))
    assert told["ess"] == pytest.approx(w.sum() ** 2 / (w**2).sum() / 10)
    assert told["top"] == pytest.approx(max(l.numpy() ** 2) / sum(l.numpy() ** 2))
    assert told["beyond_2x"] == np.mean(np.abs(l.numpy()) > math.log(2))
    assert told["tail"] is None  # too few tokens


@pytest.mark.parametrize("index", [1.0, 1.6, 3.0])
def test_the_index_of_a_known_tail(index):
    rng = np.random.default_rng(0)
    x = (1 + rng.pareto(index, 200_000)) * rng.choice([-1, 1], 200_000)
    assert tail_index(torch.tensor(x)) == pytest.approx(index, rel=0.12)


def test_independent_tokens_average_out_as_the_root_of_the_length():
    l, y = ragged([64] * 200)
    owner = [i // 8 for i in range(200)]
    b, low, high = exponent(l, y, owner)
    assert low < -0.5 < high and b == pytest.approx(-0.5, abs=0.1)
    assert [T for T, _, _ in by_length(l, y)] == [4, 8, 16, 32, 64]


def test_what_all_tokens_of_a_completion_share_does_not_average_out():
    l, y = ragged([64] * 200)
    shared = l[:200].repeat_interleave(64)
    b, low, high = exponent(shared, y, [i // 8 for i in range(200)])
    assert b == pytest.approx(0.0, abs=1e-9) and low == pytest.approx(high)


def test_shares_by_sign_do_not_depend_on_the_rewards():
    row, config, _ = resolve(AlgorithmConfig(name="gspo", epsilon=0.1, epsilon_high=0.2))
    y = Completions.of(torch.tensor([2, 2, 4]))
    logp = torch.log(torch.tensor([0.8] * 2 + [1.1] * 2 + [1.3] * 4))
    old = torch.zeros(8)
    low, high = clipped_shares(PolicyObjective(row, config, 9), logp, y, {"logp_old": old, "logp_mu": old})
    assert (low, high) == (0.25, 0.5)  # two tokens of eight, four of eight
