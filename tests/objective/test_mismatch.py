import math

import pytest
import torch

from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from gspo.objective.mismatch import mismatch, noise_is_tolerable, std


def test_by_hand():
    """Three tokens of two completions: pi/mu is 3/2, 1/4 and 1."""
    pi, mu = torch.tensor([0.45, 0.2, 0.1]).log(), torch.tensor([0.3, 0.8, 0.1]).log()
    found = mismatch(pi, mu, Completions.of(torch.tensor([2, 1])))
    s = math.sqrt(1.5 / 4)  # of the first completion; the second has 1
    assert found == pytest.approx(
        {
            "ratio/noise_floor": (1 - s) / math.sqrt(2),
            "mismatch/kl": ((1.5 - 1 - math.log(1.5)) + (0.25 - 1 + math.log(4)) + 0) / 3,
            "mismatch/prob_mean": (0.15 + 0.6) / 3,
            "mismatch/prob_max": 0.6,
            "mismatch/ratio_over_2": 1 / 3,
            "mismatch/weight_mean": 2.75 / 3,
            "mismatch/weight_std": math.sqrt(sum((w - 2.75 / 3) ** 2 for w in (1.5, 0.25, 1)) / 2),
            "mismatch/ess": 2.75**2 / (2.25 + 0.0625 + 1) / 3,
        },
        abs=1e-6,
    )


def test_it_is_taken_in_float64():
    logp = torch.full((1,), -1.0)
    found = mismatch(logp + 1e-6, logp, Completions.of(torch.tensor([1])))
    assert 0 < found["mismatch/kl"] < 1e-11


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_clip_of_single_tokens_tolerates_less_of_a_sampler(name):
    """The KLs are those of an exact, an fp8 and an int4 sampler; no token is clipped by them yet."""
    row = ALGORITHMS[name]
    told = [noise_is_tolerable(row, 0.001, kl) for kl in (1e-13, 3e-6, 6e-5)]
    single = name in {"grpo", "grpo_dual", "dr_grpo", "dapo", "minirl", "ppo"}
    assert told == ([True, True, False] if single else [True, True, True])
    assert not noise_is_tolerable(row, 0.011, 0.0)


def test_one_value_has_no_spread():
    assert std(torch.tensor([3.0])) == std(torch.tensor([])) == 0
    assert std(torch.tensor([1.0, 3.0])) == pytest.approx(math.sqrt(2))
