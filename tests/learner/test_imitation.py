import pytest
import torch

from gspo.learner.imitation import Imitation
from tests.bigram import Bigram
from tests.learner.cases import completions, updater_of


def test_imitation_is_the_mean_nll_of_completion_tokens():
    batch = completions()
    metrics, _ = updater_of(Bigram(), 12, lr=1e-9).update(Imitation(), batch)
    assert metrics["loss"] == pytest.approx(-float(torch.cat([Bigram().logp_of(r) for r in batch]).mean()))
