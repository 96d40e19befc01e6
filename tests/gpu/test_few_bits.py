"""Weights and moments of few bits, where bitsandbytes is installed."""

import pytest
import torch

from gspo.config.policy import ResolvedOptimizer
from gspo.learner.optimizer import Optimizer

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def needs_its_library():
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (pip install 'gspo[quantized]')")


def steps(name, device, count=50):
    """A weight after updates with gradients around a drift, the same for all."""
    g = torch.Generator().manual_seed(0)
    p = torch.nn.Parameter(torch.zeros(128, 256, device=device))
    optimizer = Optimizer([p], ResolvedOptimizer(name=name, lr=1e-3, max_grad_norm=1e9), count, 0)
    drift = torch.randn(128, 256, generator=g)
    for _ in range(count):
        p.grad = (drift + torch.randn(128, 256, generator=g)).to(device)
        optimizer.step(0.0)
    return p.detach().cpu()


def test_moments_of_8_bits_take_nearly_adamws_steps(device, report):
    wide, narrow = steps("adamw", device), steps("adamw_8bit", device)
    error = float((narrow - wide).norm() / wide.norm())
    report.check("AdamW with moments of 8 bits against AdamW: relative error of 50 steps", error, least=1e-5, most=0.05)
    ours = float((wide - steps("adamw", "cpu")).norm() / wide.norm())
    report.check("AdamW against the CPU's: relative error of 50 steps", ours, most=1e-4)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_packed_weights(kind, device, report):
    """Of int8 bitsandbytes does not round to the same of two neighbours everywhere: it must be as near to the weight."""
    from gspo.backends.hf.quantized_weights import Packed

    weight = torch.randn(96, 256, generator=torch.Generator().manual_seed(0))
    here, there = Packed(weight, kind).whole(), Packed(weight.to(device), kind).whole().cpu()
    differ = float((here != there).double().mean())
    report.tell(f"weights of {kind}: share that is not the CPU's", differ)
    ratio = float((there - weight).norm() / (here - weight).norm())
    report.check(f"weights of {kind}: rounding's error, over the CPU's", ratio, least=0.95, most=1.05)
    error = float((Packed(weight, kind).to(device).whole().cpu() - here).abs().max())
    report.check(f"weights of {kind} packed on the CPU: largest error of unpacking", error, most=1e-6)
