import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from gspo.objective.losses import bounded, grpo, gspo, gspo_token, gspo_turn, sequence_ratio
from tests.objective.cases import BUDGET, LENGTHS, case, terms, value_and_gradient
from tests.objective.reference import objective

NAMES = list(ALGORITHMS)


@pytest.mark.parametrize("seed", range(3))
def test_value_and_gradient_equal_a_naive_float64_loop(seed, subtests):
    for name, clip in product(NAMES, [(0.05, 0.07), (3e-4, 4e-4), (0.9, 5.0)]):
        with subtests.test(name=name, clip=clip):
            logp, old, A, y = case(seed, shift=0.3 + seed)  # a large shift reaches every bound
            mu = old - 0.2 * torch.rand(len(old), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.01
            logp = (logp.detach() - logp.detach().max().clamp(min=0) - 0.01).requires_grad_()  # probabilities below 1
            expected = -objective(name, logp, old, A.tolist(), LENGTHS, *clip, BUDGET, mu, **ALGORITHMS[name].constants)
            expected_gradient = torch.autograd.grad(expected, logp)[0]
            loss, gradient = value_and_gradient(name, logp, old, A, y, *clip, mu)
            torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-14)


# A stop-gradient has no numeric gradient.
STOPPED = {"gspo_token", "gspo_turn", "cispo", "dppo_tv", "dppo_kl", "minirl", "reinforce_is", "vespo"}


@pytest.mark.parametrize("name", [n for n in NAMES if n not in STOPPED])
def test_gradcheck(name):
    logp, old, A, y = case(1)

    def f(x):
        return terms(name, x, old, A, y, 0.05, 0.07).loss

    assert torch.autograd.gradcheck(f, (logp,), eps=1e-7, atol=1e-6)


def test_worked_numbers_of_gspo():
    # Two completions: ratios of its two tokens 1.02 and 1.0 -> s = sqrt(1.02) = 1.00995; one token 0.9 -> s = 0.9.
    old = torch.zeros(3, dtype=torch.float64)
    logp = torch.tensor([1.02, 1.0, 0.9], dtype=torch.float64).log()
    y = Completions.of(torch.tensor([2, 1]))
    out = gspo(logp, old, torch.tensor([1.0, -2.0], dtype=torch.float64), y, 0.05, 0.005)
    assert out.ratio.tolist() == pytest.approx([math.sqrt(1.02), 0.9])
    # first: min(1.00995, clipped to 1.005) = 1.005; second: min(0.9 * -2, 0.95 * -2) = -1.9; minus signs: a loss
    assert out.loss.tolist() == pytest.approx([-1.005, 1.9])
    assert out.clipped_high.tolist() == [True, False]
    assert out.clipped_low.tolist() == [False, True]


def test_clip_binds_only_where_it_takes_the_gradient_away():
    old = torch.zeros(4, dtype=torch.float64)
    logp = torch.tensor([1.1, 1.1, 0.9, 0.9], dtype=torch.float64).log().requires_grad_()
    A = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    out = gspo(logp, old, A, Completions.of(torch.ones(4, dtype=torch.int64)), 0.05, 0.05)
    (gradient,) = torch.autograd.grad(out.loss.sum(), logp)
    assert (gradient == 0).tolist() == (out.clipped_low | out.clipped_high).tolist() == [True, False, False, True]


def test_gradients_are_equations_10_12_and_17():
    """Of GSPO, GRPO and GSPO-token, where nothing is clipped."""
    logp, old, A, y = case(3)
    by_token = torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    s, w = sequence_ratio(logp, old, y).detach(), (logp - old).exp().detach()
    for name, advantage, expected in (
        ("gspo", A, y.spread(s * A / y.length)),
        ("grpo", A, w * y.spread(A / y.length)),
        ("gspo_token", by_token, by_token * y.spread(s / y.length)),
    ):
        _, gradient = value_and_gradient(name, logp, old, advantage, y, 0.99, 99.0)
        torch.testing.assert_close(gradient, -expected / len(LENGTHS))


@given(st.integers(0, 10_000), st.floats(1e-4, 0.5))
@settings(max_examples=50, deadline=None)
def test_gspo_token_equals_gspo_when_advantages_are_equal_within_a_completion(seed, e):
    logp, old, A, y = case(seed)
    a = value_and_gradient("gspo", logp, old, A, y, e, e)
    for advantage in (A, y.spread(A)):
        b = value_and_gradient("gspo_token", logp, old, advantage, y, e, e)
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15)
    by_completion, by_token = gspo(logp, old, A, y, e, e), gspo_token(logp, old, A, y, e, e)
    assert torch.equal(y.spread(by_completion.clipped_low), by_token.clipped_low)
    assert torch.equal(y.spread(by_completion.clipped_high), by_token.clipped_high)


def test_gspo_token_with_advantages_by_token_equals_the_naive_loop():
    logp, old, _, y = case(5)
    A = torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    nested = [part.tolist() for part in A.split(LENGTHS)]
    expected = -objective("gspo_token", logp, old, nested, LENGTHS, 0.05, 0.07, BUDGET)
    loss, gradient = value_and_gradient("gspo_token", logp, old, A, y, 0.05, 0.07)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, logp)[0])


@given(st.integers(0, 10_000), st.floats(1e-4, 0.5))
@settings(max_examples=50, deadline=None)
def test_at_completion_length_one_gspo_is_grpo(seed, e):
    logp, old, A, y = case(seed, lengths=[1] * 6)
    for a, b in zip(gspo(logp, old, A, y, e, e), grpo(logp, old, A, y, e, e)):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-15)


TURNS = torch.tensor([0, 0, 1, 0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 4, 4])  # some numbers are missing


def by_turn(seed):
    logp, old, _, y = case(seed, [3, 1, 7, 4])
    g = torch.Generator().manual_seed(seed)
    of_turn = {
        pair: float(torch.randn((), generator=g)) for pair in dict.fromkeys(zip(y.completion.tolist(), TURNS.tolist()))
    }
    A = torch.tensor([of_turn[pair] for pair in zip(y.completion.tolist(), TURNS.tolist())], dtype=torch.float64)
    return logp, old, A, Completions(y.completion, y.length, TURNS)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clip", [(0.05, 0.07), (0.9, 5.0)])
def test_gspo_by_turn_equals_a_naive_float64_loop(seed, clip):
    logp, old, A, y = by_turn(seed)
    total = logp.new_zeros(())
    for i in range(4):
        of_completion = [t for t in range(15) if int(y.completion[t]) == i]
        for turn in sorted({int(TURNS[t]) for t in of_completion}):
            tokens = [t for t in of_completion if int(TURNS[t]) == turn]
            s = math.exp(sum(float(logp[t].detach() - old[t]) for t in tokens) / len(tokens))
            for t in tokens:
                s_t = s * torch.exp(logp[t] - logp[t].detach())
                clipped = torch.clamp(s_t, 1 - clip[0], 1 + clip[1])
                total = total + torch.minimum(s_t * A[t], clipped * A[t]) / len(of_completion)
    expected = torch.autograd.grad(-total, logp)[0]
    out = gspo_turn(logp, old, A, y, *clip)
    torch.testing.assert_close(out.loss.sum(), -total, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.autograd.grad(out.loss.sum(), logp)[0], expected, rtol=1e-11, atol=1e-14)


def test_a_ratio_beyond_every_float_stays_finite_and_what_the_clip_removes_has_no_gradient(subtests):
    """exp overflows above 88 in float32; 0 times infinity is not 0. Also the way down, to a ratio of 0."""
    for name, sign, dtype in product(NAMES, [1.0, -1.0], [torch.float32, torch.float64]):
        with subtests.test(name=name, sign=sign, dtype=dtype):
            check_a_ratio_beyond_every_float(name, sign, dtype)


def check_a_ratio_beyond_every_float(name, sign, dtype):
    y = Completions.of(torch.tensor([2, 1]))
    A = torch.tensor([sign, sign], dtype=dtype)
    for log_ratio in (89.0, 120.0, 800.0, -120.0, -800.0):
        down = -abs(log_ratio) - 1
        logp = torch.full((3,), -1.0 if log_ratio > 0 else down, dtype=dtype).requires_grad_()
        old = torch.full((3,), down if log_ratio > 0 else -1.0, dtype=dtype)
        out = terms(name, logp, old, A, y, 0.05, 0.07)
        assert out.loss.isfinite().all() and out.ratio.isfinite().all()
        (gradient,) = torch.autograd.grad(out.loss.sum(), logp)
        assert gradient.isfinite().all()
        if ALGORITHMS[name].epsilon is None and name != "gmpo":
            continue
        if (log_ratio > 0) == (sign > 0):
            assert (out.clipped_high if sign > 0 else out.clipped_low).all() and not gradient.any()
        elif log_ratio > 0 and name == "grpo_dual":
            assert out.clipped_high.all() and not gradient.any()
        elif log_ratio > 0:  # the clip lets it through: it is pushed back
            assert (gradient > 0).all()


def test_below_the_bound_no_bit_changes():
    x = torch.linspace(-100, 20, 1001, requires_grad=True)
    assert torch.equal(bounded(x), x) and torch.equal(torch.autograd.grad(bounded(x).exp().sum(), x)[0], x.exp())
    above = torch.tensor([20.5, 88.0, 1e4], requires_grad=True)
    torch.testing.assert_close(bounded(above), torch.full((3,), 20.0))
    assert torch.equal(torch.autograd.grad(bounded(above).sum(), above)[0], torch.ones(3))
