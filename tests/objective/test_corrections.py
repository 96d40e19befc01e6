import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.objective.algorithms import ALGORITHMS, BOUNDS, correction_level
from gspo.objective.completions import Completions
from gspo.objective.corrections import CORRECTIONS, covariant, least_entropy, off_policy, ratio
from tests.objective import reference
from tests.objective.cases import LENGTHS, case

LEVELS = ("sequence", "turn", "token")


def mismatched(seed, lengths, spread):
    g = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    old = -3 * torch.rand(n, generator=g, dtype=torch.float64)
    return old, old + spread * torch.randn(n, generator=g, dtype=torch.float64), Completions.of(torch.tensor(lengths))


def test_ratios_by_hand():
    """Two completions, of ratios 2, 1/2, 4 and of 3: geometric means 4^(1/3) and 3, products 4 and 3."""
    old = torch.tensor([2.0, 0.5, 4.0, 3.0], dtype=torch.float64).log()
    mu, turn = torch.zeros_like(old), torch.tensor([0, 1, 1, 0])
    y = Completions.of(torch.tensor([3, 1]), turn)
    found = {(level, over): ratio(level, over, old, mu, y).tolist() for level, over in product(LEVELS, ("mean", "product"))}
    assert found["token", "mean"] == pytest.approx([2, 0.5, 4, 3])
    assert found["sequence", "mean"] == pytest.approx([4 ** (1 / 3), 3])
    assert found["sequence", "product"] == pytest.approx([4, 3])
    assert found["turn", "mean"] == pytest.approx([2, 2**0.5, 2**0.5, 3])
    assert found["turn", "product"] == pytest.approx([2, 2, 2, 3])


@pytest.mark.parametrize(("name", "over"), BOUNDS)
def test_weights_equal_a_naive_float64_loop(name, over):
    level = "token" if over == "token" else "sequence"
    reached = set()
    for seed, spread in product(range(3), (1e-3, 0.03, 1.0)):
        lengths = [3, 1, 7, 40]
        old, mu, y = mismatched(seed, lengths, spread)
        expected = reference.correction(name, over, old, mu, lengths, *BOUNDS[name, over])
        found = CORRECTIONS[name](ratio(level, over, old, mu, y), *BOUNDS[name, over])
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)
        reached |= {weight == 0 or weight == BOUNDS[name, over][1] for weight in expected}
    assert reached == {False, True}  # within the bounds and at them


def test_a_ratio_beyond_every_float_is_bounded():
    y = Completions.of(torch.tensor([2]))
    old, mu = torch.tensor([-1.0, -1.0]), torch.tensor([-90.0, -90.0])
    assert all(ratio(level, over, old, mu, y).isfinite().all() for level, over in product(LEVELS, ("mean", "product")))


def test_what_a_correction_weighs():
    assert correction_level(ALGORITHMS["grpo"], "tis") == correction_level(ALGORITHMS["grpo"], "icepop") == "token"
    assert correction_level(ALGORITHMS["grpo"], "seq_mis") == correction_level(ALGORITHMS["gspo"], "tis") == "sequence"
    assert correction_level(ALGORITHMS["gspo_turn"], "icepop") == "turn"


def test_off_policy_masking_by_hand():
    """Two tokens that pi_theta halves and keeps: log 2 / 2 = .347 nats a token; then one that it doubles."""
    mu = torch.tensor([0.5, 0.4, 0.2], dtype=torch.float64).log()
    logp, y = torch.tensor([0.25, 0.4, 0.4], dtype=torch.float64).log(), Completions.of(torch.tensor([2, 1]))

    def masked(A, delta):
        return off_policy(logp, mu, torch.tensor(A), y, delta).tolist()

    assert masked([-1.0, -1.0], 0.34) == [True, False]
    assert masked([-1.0, -1.0], 0.35) == masked([1.0, -1.0], 0.34) == masked([0.0, -1.0], 0.34) == [False, False]
    assert masked([-1.0, 1.0, -1.0], 0.34) == [True, False, False]  # A by token: M_it


@given(st.integers(0, 10_000), st.floats(0.01, 2.0), st.floats(1e-3, 1.0), st.booleans())
@settings(max_examples=50, deadline=None)
def test_off_policy_masking_equals_a_naive_loop_and_a_lower_bound_masks_more(seed, shift, delta, by_token):
    logp, mu, A, y = case(seed, shift=shift)
    if by_token:
        A = torch.randn(len(mu), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    parts = [part.tolist() for part in A.split(LENGTHS)] if by_token else A.tolist()
    found = off_policy(logp, mu, A, y, delta)
    assert found.shape == A.shape and not found.requires_grad and not found[A >= 0].any()
    assert y.spread(found).tolist() == reference.off_policy(logp, mu, parts, LENGTHS, delta)
    assert (found <= off_policy(logp, mu, A, y, delta / 2)).all()
    s = ratio("sequence", "mean", logp, mu, y)  # the geometric mean of pi_theta/mu
    assert torch.equal(found, (A < 0) & y.spread(s < math.exp(-delta)) if by_token else (A < 0) & (s < math.exp(-delta)))


def test_the_highest_share_of_entropies_by_hand():
    H = torch.tensor([0.1, 2.0, 0.5, 0.5, 1.0])
    assert [least_entropy(H, share) for share in (0.01, 0.2, 0.4, 0.6, 1.0)] == pytest.approx([2.0, 2.0, 1.0, 0.5, 0.1])
    assert int((least_entropy(H, 0.6) <= H).sum()) == 4  # equal ones all count


def test_the_tokens_of_high_covariance_by_hand():
    logp, A = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0]), torch.tensor([-3.5, 0.5, 4.5, 2.5, 3.5]) - 1  # means 0, 0.5
    cov = [10.0, 1.0, 0.0, 1.0, 4.0]
    assert ((logp - logp.mean()) * (A - A.mean())).tolist() == cov
    for share, found in (
        (0.01, [0]),
        (0.4, [0, 4]),
        (0.6, [0, 4, 1]),
        (1.0, [0, 4, 1, 3]),
    ):  # of equal ones the first; none at 0
        assert covariant(logp, A, share).tolist() == found
    assert covariant(logp, torch.ones(5), 0.4).tolist() == []  # a step without signal
    draw = torch.tensor([0.1, 0.9, 0.2, 0.5, 0.7])
    for share, found in ((0.01, [3]), (0.4, [3, 4]), (0.6, [3, 4, 1]), (1.0, [3, 4, 1])):  # 10 and 0 are out of bounds
        assert covariant(logp, A, share, draw).tolist() == found
    assert covariant(logp, A / 11, 0.4, draw).tolist() == []


@given(st.integers(0, 10**6))
def test_the_lowest_draws_within_the_bounds_are_taken(seed):
    g = torch.Generator().manual_seed(seed)
    logp, A = torch.randn(40, generator=g), 3 * torch.randn(40, generator=g)
    cov = ((logp - logp.mean()) * (A - A.mean())).tolist()
    draw = torch.rand(40, generator=g)
    inside = sorted((i for i in range(40) if 1 <= cov[i] <= 5), key=lambda i: draw[i].item())
    assert covariant(logp, A, 0.1, draw).tolist() == inside[:4]
