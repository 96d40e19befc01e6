import math

import pytest
import torch

from gspo.objective.divergence import ESTIMATORS, k1, k2, k3


def test_worked_numbers():
    logp, ref = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert float(k1(logp, ref)) == pytest.approx(math.log(2))
    assert float(k2(logp, ref)) == pytest.approx(math.log(2) ** 2 / 2)
    assert float(k3(logp, ref)) == pytest.approx(0.5 - 1 + math.log(2))


def test_k1_and_k3_are_unbiased():
    g = torch.Generator().manual_seed(0)
    p, q = (torch.randn(6, generator=g, dtype=torch.float64).log_softmax(0) for _ in range(2))
    exact = float((p.exp() * (p - q)).sum())
    for name in ("k1", "k3"):
        assert float((p.exp() * ESTIMATORS[name](p, q)).sum()) == pytest.approx(exact, rel=1e-12)


def test_as_losses_k2_has_the_gradient_of_the_divergence_and_k1_none():
    z = torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    q = torch.randn(6, generator=torch.Generator().manual_seed(2), dtype=torch.float64).log_softmax(0)
    p = z.log_softmax(0)
    exact = torch.autograd.grad((p.exp() * (p - q)).sum(), z, retain_graph=True)[0]
    expected = {
        name: torch.autograd.grad((p.exp().detach() * ESTIMATORS[name](p, q)).sum(), z, retain_graph=True)[0]
        for name in ("k1", "k2")
    }
    torch.testing.assert_close(expected["k2"], exact)
    torch.testing.assert_close(expected["k1"], torch.zeros_like(exact), atol=1e-12, rtol=0)


def test_no_estimate_overflows():
    """In float32 exp does above 88: where the reference gives a token all and the policy nothing."""
    logp = torch.tensor([-400.0, -100.0, -1.0], requires_grad=True)
    for name, estimate in ESTIMATORS.items():
        value = estimate(logp, torch.tensor([-1.0, -1.0, -400.0]))
        (gradient,) = torch.autograd.grad(value.sum(), logp)
        assert value.isfinite().all() and gradient.isfinite().all(), name
        assert name == "k1" or (gradient[:2] < 0).all()  # towards the reference
