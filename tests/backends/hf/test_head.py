"""The head by blocks gives the values and gradients of the whole softmax, in less memory."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.backends.hf import head
from gspo.backends.hf.head import ROUND, Head, footprint
from tests.live import Live

WHOLE = (1 << 24, 1 << 26)
V = 2 * ROUND + 9  # with N = 7: two blocks and a remainder at BLOCK = 7 * ROUND


def head_inputs(n=7, vocabulary=V, width=5, bias=False, frozen=False, dtype=torch.float64, seed=0):
    """States, weight, bias or None, and targets."""
    g = torch.Generator().manual_seed(seed)
    states = torch.randn(n, width, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=g, dtype=torch.float64).to(dtype).requires_grad_(not frozen)
    b = torch.randn(vocabulary, generator=g, dtype=torch.float64).to(dtype).requires_grad_(not frozen) if bias else None
    return states, weight, b, torch.randint(vocabulary, (n,), generator=g)


def whole(states, weight, bias, targets, temperature=1.0, scale=1.0, cap=None):
    """Log-probabilities and entropies by the formula, all logits at once."""
    z = scale * F.linear(states, weight, bias)
    z = z if cap is None else cap * torch.tanh(z / cap)
    logps = (z / temperature).log_softmax(-1)
    return logps.gather(-1, targets[:, None])[:, 0], -(logps.exp() * logps).sum(-1)


def gradients(outputs, inputs, coming):
    total = sum((out * g).sum() for out, g in zip(outputs, coming) if g is not None)
    return torch.autograd.grad(total, inputs, retain_graph=True)


def limit(monkeypatch, block, kept):
    monkeypatch.setattr(head, "BLOCK", block)
    monkeypatch.setattr(head, "KEPT", kept)


@pytest.mark.parametrize("limits", [WHOLE, (7 * ROUND, 1 << 26), (7 * ROUND, 7 * ROUND), (1, 0)], ids=str)
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"cap": 2.0}, {"scale": 1.7, "cap": 3.0}], ids=str)
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_the_whole_softmax(bias, frozen, options, limits, monkeypatch):
    limit(monkeypatch, *limits)
    states, weight, b, targets = head_inputs(bias=bias, frozen=frozen)
    actual = Head(weight, b, **options).logprobs(states, targets, 0.7, entropy=True)
    expected = whole(states, weight, b, targets, 0.7, **options)
    torch.testing.assert_close(actual, expected)
    inputs = [x for x in (states, weight, b) if x is not None and x.requires_grad]
    g = torch.randn(2, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    g[:, ::3] = 0
    # One after the other through the same graph: a second pass finds nothing kept.
    for coming in ((torch.ones_like(g[0]), None), (g[0], None), (g[0], g[1]), (None, g[1])):
        torch.testing.assert_close(gradients(actual, inputs, coming), gradients(expected, inputs, coming))


@settings(deadline=None, max_examples=60)
@given(
    n=st.integers(0, 9), vocabulary=st.integers(1, 300), width=st.integers(1, 6), block=st.integers(1, 3000),
    kept=st.integers(0, 3000), frozen=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_shape(n, vocabulary, width, block, kept, frozen, seed):
    states, weight, _, targets = head_inputs(n, vocabulary, width, frozen=frozen, seed=seed)
    expected = whole(states, weight, None, targets)
    with pytest.MonkeyPatch.context() as monkeypatch:
        limit(monkeypatch, block, kept)
        actual = Head(weight).logprobs(states, targets, entropy=True)
        torch.testing.assert_close(actual, expected)
        inputs, coming = [states] if frozen else [states, weight], (torch.ones(n, dtype=torch.float64), None)
        torch.testing.assert_close(gradients(actual, inputs, coming), gradients(expected, inputs, coming))


def test_logits_are_those_of_the_log_probabilities(monkeypatch):
    limit(monkeypatch, 1, 0)
    monkeypatch.setattr("gspo.backends.hf.head.FEW_WORDS", ROUND)
    states, weight, bias, targets = head_inputs(bias=True)
    head = Head(weight, bias, 1.7, 3.0)
    logits = head.logits(states[None])
    assert logits.shape == (1, 7, V) and not logits.requires_grad
    logp = logits[0].log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(head.logprobs(states, targets)[0].detach(), logp)


@pytest.mark.parametrize("limits", [WHOLE, (7 * ROUND, 0)], ids=str)
def test_rows_without_gradient_take_no_part(limits, monkeypatch):
    limit(monkeypatch, *limits)
    states, weight, _, targets = head_inputs()
    with torch.no_grad():
        states[2] = math.inf  # its probabilities are nan, and 0 * nan would be too
    logp, _ = Head(weight).logprobs(states, targets)
    g = torch.ones(7, dtype=torch.float64)
    none = torch.autograd.grad(logp, [states, weight], 0 * g, retain_graph=True)
    assert not any(gradient.any() for gradient in none)
    g[2] = 0
    d_states, d_weight = torch.autograd.grad(logp, [states, weight], g)
    others = [0, 1, 3, 4, 5, 6]
    values, _ = whole(states[others], weight, None, targets[others])
    torch.testing.assert_close((d_states, d_weight), torch.autograd.grad(values.sum(), [states, weight]))


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("limits", [WHOLE, (1, 0)], ids=str)
def test_bfloat16_is_summed_in_float32(limits, frozen, monkeypatch):
    limit(monkeypatch, *limits)
    states, weight, _, targets = head_inputs(width=64, frozen=frozen, dtype=torch.bfloat16)
    exact = [x.detach().double().requires_grad_(x.requires_grad) for x in (states, weight)]
    actual, expected = Head(weight).logprobs(states, targets, entropy=True), whole(*exact, None, targets)
    count = 1 if frozen else 2
    ours = torch.autograd.grad(actual[0].sum(), [states, weight][:count])
    right = torch.autograd.grad(expected[0].sum(), exact[:count])
    assert {x.dtype for x in actual} == {torch.float32} and {x.dtype for x in ours} == {torch.bfloat16}
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5, check_dtype=False)
    torch.testing.assert_close(ours, right, atol=1e-5, rtol=2**-8, check_dtype=False)  # rounded once


def test_autocast_changes_nothing():
    states, weight, bias, targets = head_inputs(bias=True, dtype=torch.float32)
    found, g = [], torch.ones(7)
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            values = Head(weight, bias).logprobs(states, targets, entropy=True)
            found.append([*values, *gradients(values, [states, weight, bias], (g, g))])
    assert all(torch.equal(plain, ours) for plain, ours in zip(*found))


@pytest.mark.parametrize("limits", [WHOLE, (1, 0)], ids=str)
def test_a_near_certain_word_keeps_its_small_gradient(limits, monkeypatch):
    limit(monkeypatch, *limits)
    logits = torch.full((100, 1), 100.0)
    logits[1:] -= 17.0  # exact in float32, as is their maximum; their log-sum-exp is not
    logp, _ = Head(logits.requires_grad_()).logprobs(torch.ones(1, 1), torch.tensor([0]))
    logp.sum().backward()
    mass = 99 * math.exp(-17)
    assert float(logits.grad[0]) == pytest.approx(mass / (1 + mass), rel=0.1)  # 4e-6: some 70 steps of float32 below 1
    assert float(logits.grad[99]) == pytest.approx(-math.exp(-17) / (1 + mass), rel=1e-5)


def test_impossible_words_have_no_entropy():
    states = torch.zeros(1, 2, requires_grad=True)
    weight, bias = torch.ones(3, 2, requires_grad=True), torch.tensor([0.0, 0.0, -math.inf], requires_grad=True)
    logp, entropy = Head(weight, bias).logprobs(states, torch.tensor([1]), entropy=True)
    assert logp.tolist() == pytest.approx([-math.log(2)])
    assert entropy.tolist() == pytest.approx([math.log(2)])
    (logp.sum() + entropy.sum()).backward()
    assert bias.grad.tolist() == pytest.approx([-0.5, 0.5, 0.0])


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
    said = footprint(rows, words, 32, frozen, dtype == torch.bfloat16)
    few = 40 * rows * 8 + 2 * 4 * words * 32 + 4 * 10_000  # numbers a row; the weight's gradient and its cast
    assert live.peak - few < said < 1.3 * live.peak + few
