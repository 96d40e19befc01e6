"""The objectives that GSPO is compared with, by hand, and what ties them to each other."""

import math

import pytest
import torch

from gspo.objective.baselines import cispo, dppo_kl, dppo_tv, gmpo, luspo, minirl, sapo
from gspo.objective.completions import Completions
from gspo.objective.losses import gspo
from tests.objective.cases import case


def logs(*values):
    return torch.tensor(values, dtype=torch.float64).log()


ONE = Completions.of(torch.tensor([2]))
UP, DOWN = torch.tensor([1.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)


def test_gmpo_by_hand():
    old, logp = logs(0.5, 0.5), logs(0.5 * math.exp(0.6), 0.5 * math.exp(-0.8))
    up = gmpo(logp, old, UP, ONE, delta=0.4)  # the first is cut to e^0.4: exp((0.4 - 0.8) / 2)
    assert float(up.loss) == pytest.approx(-math.exp(-0.2))
    assert (up.clipped_low.tolist(), up.clipped_high.tolist()) == ([False, False], [True, False])
    down = gmpo(logp, old, DOWN, ONE, delta=0.4)  # the second to e^-0.4: exp((0.6 - 0.4) / 2)
    assert float(down.loss) == pytest.approx(math.exp(0.1))
    assert (down.clipped_low.tolist(), down.clipped_high.tolist()) == ([False, True], [False, False])
    assert float(up.ratio) == pytest.approx(math.exp(-0.1))


def test_cispo_by_hand():
    old, logp = logs(0.1, 0.5), logs(0.8, 0.25).requires_grad_()
    out = cispo(logp, old, UP, ONE, w_max=5.0)
    assert out.loss.item() == pytest.approx(-(5 * math.log(0.8) + 0.5 * math.log(0.25)))
    assert torch.autograd.grad(out.loss.sum(), logp)[0].tolist() == pytest.approx([-5, -0.5])  # capped, not cut off
    assert out.clipped_high.tolist() == [True, False]


def test_sapo_by_hand():
    old, logp = logs(0.5, 0.5), logs(0.5, 1.0)
    gate = [2, 4 / (1 + math.exp(-1.0))]
    assert float(sapo(logp, old, UP, ONE, 1.0, 1.05).loss) == pytest.approx(-sum(gate) / 2)
    gate = [2 / 1.05, 4 / 1.05 / (1 + math.exp(-1.05))]
    assert float(sapo(logp, old, DOWN, ONE, 1.0, 1.05).loss) == pytest.approx(sum(gate) / 2)


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


def test_luspo_is_gspo_times_the_length_and_gspo_at_length_one():
    logp, old, A, y = case(2)
    assert torch.equal(luspo(logp, old, A, y, 0.1, 0.1).loss, gspo(logp, old, A, y, 0.1, 0.1).loss * y.length)
    logp, old, A, y = case(2, lengths=[1] * 5)
    for a, b in zip(luspo(logp, old, A, y, 0.1, 0.1), gspo(logp, old, A, y, 0.1, 0.1)):
        assert torch.equal(a, b)
