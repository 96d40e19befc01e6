"""The objectives that GSPO is compared with, by hand, and what ties them to each other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.baselines import (
    dppo_kl,
    dppo_tv,
    gmpo,
    grpo_dual,
    minirl,
    reinforce_is,
    vespo,
)
from gspo.objective.completions import Completions
from gspo.objective.losses import grpo
from tests.objective.cases import case


def logs(*values):
    return torch.tensor(values, dtype=torch.float64).log()


ONE = Completions.of(torch.tensor([2]))
UP, DOWN = torch.tensor([1.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)


@given(st.integers(0, 10_000), st.floats(0.1, 2.0))
@settings(max_examples=50, deadline=None)
def test_the_dual_clip_is_grpo_but_where_it_binds(seed, shift):
    logp, old, A, y = case(seed, shift=shift)
    ours, plain = grpo_dual(logp, old, A, y, 0.2, 0.27, 3.0), grpo(logp, old, A, y, 0.2, 0.27)
    binds = ((logp - old).exp() > 3) & (y.spread(A) < 0)
    (gradient,), (expected,) = (torch.autograd.grad(each.loss.sum(), logp) for each in (ours, plain))
    assert torch.equal(gradient, torch.where(binds, 0, expected)) and bool(expected[binds].all())
    assert torch.equal(ours.clipped_high, plain.clipped_high | binds) and torch.equal(ours.clipped_low, plain.clipped_low)
    rest = y.sum(binds.double()) == 0
    assert torch.equal(ours.loss[rest], plain.loss[rest]) and (ours.loss[~rest] < plain.loss[~rest]).all()


def test_the_smooth_weight_is_bounded_as_the_paper_says():
    """Proposition C.1: at most (c1/c2)^c1 exp(c2 - c1), at W = c1/c2: 1.21 for (2, 3) and 1.24 for (3, 2)."""
    W = torch.logspace(-9, 40, 5000, base=math.e, dtype=torch.float64)
    y, kernel = Completions.of(torch.ones(len(W)).long()), ALGORITHMS["vespo"].constants
    for A, c1, c2, most in ((1.0, 2, 3, 1.21), (-1.0, 3, 2, 1.24)):
        logp = W.log().clone().requires_grad_()
        out = vespo(logp, torch.zeros_like(W), torch.full_like(W, A), y, **kernel)
        weight = torch.autograd.grad(out.loss.sum(), logp)[0] / -A
        assert float(weight.max()) == pytest.approx((c1 / c2) ** c1 * math.exp(c2 - c1), rel=1e-4)
        assert float(weight.max()) == pytest.approx(most, abs=5e-3)
        assert float(W[weight.argmax()]) == pytest.approx(c1 / c2, rel=2e-2) and bool((weight >= 0).all())


def test_a_weight_beyond_every_float_is_bounded_as_ratios_are():
    old, A = torch.full((4,), -60.0), torch.tensor([1.0, 0.0])
    logp, y = torch.full((4,), -1.0, requires_grad=True), Completions.of(torch.tensor([2, 2]))  # log W = 118
    out = reinforce_is(logp, old, A, y, w_max=1e38)
    (gradient,) = torch.autograd.grad(out.loss.sum(), logp)
    torch.testing.assert_close(gradient, torch.tensor([-0.5, -0.5, 0, 0]) * math.exp(20))


def test_the_weighted_one_estimates_the_gradient_of_the_policy_as_it_is():
    """Over every completion of two tokens of three, by pi_old's probabilities: GRPO's gradient on policy, exactly."""
    g = torch.Generator().manual_seed(3)
    old = torch.randn(4, 3, generator=g, dtype=torch.float64).log_softmax(-1)  # of the first token, and after each
    table = (old + 0.5 * torch.randn(4, 3, generator=g, dtype=torch.float64)).requires_grad_()
    reward = torch.randn(3, 3, generator=g, dtype=torch.float64)
    y, found = Completions.of(torch.full((9,), 2)), []
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))  # [9, 2]
    rows = torch.stack([torch.zeros(9, dtype=torch.long), pairs[:, 0] + 1], 1).flatten()

    def of(x):
        return x.log_softmax(-1)[rows, pairs.flatten()]

    for sampled, loss in (
        (of(old), lambda: reinforce_is(of(table), of(old), reward.flatten(), y, w_max=1e9).loss),
        (of(table), lambda: grpo(of(table), of(table).detach(), reward.flatten(), y, 0.2, 0.27).loss),
    ):
        expectation = (y.sum(sampled.detach()).exp() * loss()).sum()
        found.append(torch.autograd.grad(expectation, table)[0])
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-15)


def test_gmpo_by_hand():
    old, logp = logs(0.5, 0.5), logs(0.5 * math.exp(0.6), 0.5 * math.exp(-0.8))
    up = gmpo(logp, old, UP, ONE, delta=0.4)  # the first is cut to e^0.4: exp((0.4 - 0.8) / 2)
    assert float(up.loss) == pytest.approx(-math.exp(-0.2))
    assert (up.clipped_low.tolist(), up.clipped_high.tolist()) == ([False, False], [True, False])
    down = gmpo(logp, old, DOWN, ONE, delta=0.4)  # the second to e^-0.4: exp((0.6 - 0.4) / 2)
    assert float(down.loss) == pytest.approx(math.exp(0.1))
    assert (down.clipped_low.tolist(), down.clipped_high.tolist()) == ([False, True], [False, False])
    assert float(up.ratio) == pytest.approx(math.exp(-0.1))


def test_dppo_by_hand():
    mu, logp = logs(0.5, 0.1), logs(0.7, 0.3).requires_grad_()
    out = dppo_tv(logp, mu, UP, ONE, delta=0.15, w_max=20.0)
    assert out.clipped_high.tolist() == [True, True]  # both moved by 0.2
    assert not torch.autograd.grad(out.loss.sum(), logp)[0].any()
    back = dppo_tv(logp, mu, DOWN, ONE, delta=0.15, w_max=20.0)  # the update leads back: nothing is masked
    assert torch.autograd.grad(back.loss.sum(), logp)[0].tolist() == pytest.approx([1.4, 3.0])
    # Binary KL: 0.5 log(5/7) + 0.5 log(5/3) = 0.087; 0.1 log(1/3) + 0.9 log(9/7) = 0.116
    assert dppo_kl(logp, mu, UP, ONE, delta=0.1, w_max=20.0).clipped_high.tolist() == [False, True]
    assert dppo_kl(logp, mu, UP, ONE, delta=0.05, w_max=20.0).clipped_high.tolist() == [True, True]


def test_minirl_weighs_by_the_sampler_and_masks_by_pi_old():
    mu, old, logp = logs(0.4, 0.4), logs(0.5, 0.5), logs(0.7, 0.55).requires_grad_()
    out = minirl(logp, old, mu, UP, ONE, 0.2, 0.27)
    assert out.clipped_high.tolist() == [True, False]  # 1.4 and 1.1
    assert torch.autograd.grad(out.loss.sum(), logp)[0].tolist() == pytest.approx([0, -0.55 / 0.4])
