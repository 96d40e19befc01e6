import math

import pytest
import torch

from gspo.config.policy import OptimizerConfig
from gspo.learner.optimizer import Optimizer, lr_at
from tests.bigram import Bigram


def test_non_finite_updates_are_skipped_counted_and_stop_the_run():
    policy = Bigram()
    before = policy.table.detach().clone()
    optimizer = Optimizer(policy.parameters(), OptimizerConfig(), 10, max_bad=2)
    for _ in range(2):
        policy.table.grad = torch.full_like(policy.table, math.nan)
        assert optimizer.step(0.0)["updates/skipped"] == 1.0
    assert torch.equal(policy.table, before)
    policy.table.grad = torch.ones_like(policy.table)
    assert optimizer.step(0.0)["updates/skipped"] == 0.0  # a good one in between starts the count anew
    for _ in range(2):
        policy.table.grad = torch.ones_like(policy.table)
        optimizer.step(math.inf)
    policy.table.grad = torch.ones_like(policy.table)
    with pytest.raises(RuntimeError, match=r"3 updates in a row.*optimizer\.lr"):
        optimizer.step(math.inf)


def test_learning_rate_schedule():
    config = OptimizerConfig(lr=1.0, warmup=4, schedule="linear", min_lr=0.1)
    assert [lr_at(i, 14, config) for i in (0, 3, 4, 9, 14, 99)] == pytest.approx([0.25, 1, 1, 0.55, 0.1, 0.1])
    assert lr_at(9, 14, OptimizerConfig(lr=2.0, warmup=4, schedule="cosine")) == pytest.approx(1.0)
    assert lr_at(999, 10, OptimizerConfig(lr=2.0)) == 2.0
