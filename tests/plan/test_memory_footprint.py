"""The formula of the moments, against those of the optimizers."""

import pytest
import torch
from torch import nn

from gspo.config.policy import OptimizerConfig
from gspo.learner.optimizer import Optimizer
from gspo.plan import memory_footprint


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
    assert memory_footprint.moments(tuple(w.numel() for w in weights), dtype.itemsize, name == "adamw_8bit") == found
