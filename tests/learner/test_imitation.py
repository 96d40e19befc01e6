import pytest
import torch

from gspo.config.policy import ResolvedOptimizer
from gspo.learner.imitation import Imitation
from gspo.learner.memory import MicroBatches
from gspo.learner.optimizer import Optimizer
from gspo.learner.update import Updater
from tests.bigram import Bigram
from tests.learner.test_update import completions


def test_imitation_is_the_mean_nll_of_completion_tokens():
    batch, policy = completions(), Bigram()
    optimizer = Optimizer(policy.parameters(), ResolvedOptimizer(lr=1e-9), 10, 0)
    metrics, _ = Updater(policy, optimizer, MicroBatches(12)).update(Imitation(), batch)
    logp = torch.cat([Bigram().table[r.tokens[1:-1]].log_softmax(-1).gather(-1, r.tokens[2:, None])[:, 0] for r in batch])
    assert metrics["loss"] == pytest.approx(-float(logp.mean()))
