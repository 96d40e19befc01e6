import math

import pytest
import torch

from gspo.objective.completions import Completions
from gspo.objective.corrections import icepop, seq_mis, tis, weights


def test_corrections_by_hand():
    r = torch.tensor([0.4, 0.6, 1.9, 2.5, 6.0])
    assert tis(r).tolist() == pytest.approx([0.4, 0.6, 1.9, 2.0, 2.0])
    assert icepop(r).tolist() == pytest.approx([0, 0.6, 1.9, 2.5, 0])
    assert seq_mis(r).tolist() == pytest.approx([0.4, 0.6, 1.9, 0, 0])


def test_a_correction_of_whole_completions_does_not_decay_with_length():
    """The field's mistake: exp of the sum of log ratios. Here a completion's weight is the geometric mean."""
    for n in (1, 10, 1000):
        y = Completions.of(torch.tensor([n]))
        old, mu = torch.full((n,), math.log(0.45)), torch.full((n,), math.log(0.5))
        for name in ("tis", "icepop", "seq_mis"):
            assert float(weights(name, "sequence", old, mu, y)) == pytest.approx(0.9, rel=1e-4)
        assert weights("tis", "token", old, mu, y).shape == (n,)
        assert weights("seq_mis", "token", old, mu, y).shape == (1,)
