"""AdamW with moments of 8 bits, against plain AdamW."""

import pytest
import torch
from torch import nn

from gspo.config.files import from_dict
from gspo.config.policy import ResolvedOptimizer
from gspo.learner.optimizer import Optimizer

NARROW = "adamw_8bit"


def steps(name, shape, count, seed=0, **config):
    """The weights after updates with gradients that are the same for both, around a drift."""
    g = torch.Generator().manual_seed(seed)
    p = nn.Parameter(torch.zeros(shape))
    optimizer = Optimizer([p], ResolvedOptimizer(**{"name": name, "lr": 1e-3, "max_grad_norm": 1e9} | config), count, 0)
    drift = torch.randn(shape, generator=g)
    for _ in range(count):
        p.grad = drift + torch.randn(shape, generator=g)
        optimizer.step(0.0)
    return p.detach(), optimizer


def test_small_weights_keep_whole_moments_and_take_adamws_steps():
    for config in ({}, {"weight_decay": 0.1}, {"eps": 1e-2, "beta2": 0.95}):
        wide, narrow = (steps(name, (32, 32), 20, **config)[0] for name in ("adamw", NARROW))
        torch.testing.assert_close(narrow, wide, rtol=1e-5, atol=1e-8)


def test_moments_of_8_bits_take_a_quarter_and_nearly_adamws_steps():
    wide, _ = steps("adamw", (128, 256), 50)
    narrow, optimizer = steps(NARROW, (128, 256), 50)
    error = float((narrow - wide).norm() / wide.norm())
    assert 1e-4 < error < 0.05
    state = next(iter(optimizer.adamw.state.values()))
    held = sum(x.numel() * x.element_size() for name, x in state.items() if torch.is_tensor(x) and "qmap" not in name)
    assert held / wide.numel() == pytest.approx(2 + 2 * 4 / 256)


def test_it_resumes_bit_for_bit():
    def run(*parts):
        g, p, saved = torch.Generator().manual_seed(1), nn.Parameter(torch.ones(64, 128)), None
        for part in parts:
            optimizer = Optimizer([p], ResolvedOptimizer(name=NARROW, lr=1e-2), 12, 0)
            if saved:
                optimizer.load_state_dict(saved)
            for _ in range(part):
                p.grad = torch.randn(p.shape, generator=g)
                optimizer.step(0.0)
            saved = optimizer.state_dict()
        return p.detach()

    assert run(5, 7).equal(run(12))


def test_small_gradients_beside_a_large_one_hardly_learn():
    """What a user should know: 256 numbers share a scale. docs/performance.md says so."""
    moved = {}
    for name in ("adamw", NARROW):
        p = nn.Parameter(torch.zeros(64, 256))
        optimizer = Optimizer([p], ResolvedOptimizer(name=name, lr=1e-3, max_grad_norm=1e9), 50, 0)
        for _ in range(50):
            p.grad = torch.full((64, 256), 1e-4)
            p.grad[:, 0] = 1.0
            optimizer.step(0.0)
        moved[name] = float(p.detach()[:, 1:].abs().mean())
    assert moved[NARROW] < 0.5 * moved["adamw"]


def test_bad_input():
    with pytest.raises(ValueError, match=r"optimizer.name = 'adam8': allowed are adamw, adamw_8bit"):
        from_dict({"optimizer": {"name": "adam8"}})
