"""Formulas of what a process holds, against tensors that were counted."""

import pytest
import torch
from torch import nn

from gspo.backends.hf.head import Head
from gspo.config.policy import OptimizerConfig
from gspo.learner import holding
from gspo.learner.optimizer import Optimizer
from tests.live import Live


@pytest.mark.parametrize("name", ["adamw", "adamw_8bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_are_as_large_as_those_of_the_optimizer(name, dtype):
    weights = [nn.Parameter(torch.randn(*size).to(dtype)) for size in ((64, 100), (64, 63), (5000,), (7,))]
    optimizer = Optimizer(weights, OptimizerConfig(name=name), 1, 0)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step(0.0)
    shared = {"step", "qmap1", "qmap2"}  # a number, and tables that all weights share
    state = [x for of in optimizer.adamw.state.values() for key, x in of.items() if key not in shared]
    found = sum(x.numel() * x.element_size() for x in state)
    assert holding.moments(tuple(w.numel() for w in weights), dtype.itemsize, name == "adamw_8bit") == found


@pytest.mark.parametrize("rows", [10, 700])
@pytest.mark.parametrize("words", [900, 60_000, 110_000])  # logits that are kept, some of them, and none below adapters
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_takes_what_is_said(rows, words, frozen, dtype):
    states = torch.randn(rows, 32).to(dtype).requires_grad_()
    weight = torch.randn(words, 32).to(dtype).requires_grad_(not frozen)
    targets = torch.zeros(rows, dtype=torch.long)
    with Live() as live:
        logp, _ = Head(weight).logprobs(states, targets, entropy=True)
        logp.sum().backward()
    said = holding.head(rows, words, 32, frozen, dtype == torch.bfloat16)
    few = 40 * rows * 8 + 2 * 4 * words * 32 + 4 * 10_000  # numbers a row; the weight's gradient and its cast
    assert live.peak - few < said < 1.3 * live.peak + few
