"""The compiled kernels against naive computations in float64, values and gradients."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.backends.hf.fused import build, ops

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler here")
SMALL = st.integers(1, 70)


def random(seed, *shape, size=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size


def check(ours, naive, *inputs, limit=2e-6):
    """Values and gradients of both, the naive ones in float64, as shares of the largest."""
    single = [x.clone().requires_grad_() for x in inputs]
    double = [x.double().requires_grad_() for x in inputs]
    a, b = ours(*single), naive(*double)
    direction = random(9, *a.shape)
    gradients = [torch.autograd.grad((y * direction.to(y.dtype)).sum(), x) for y, x in ((a, single), (b, double))]
    for mine, exact in zip([a, *gradients[0]], [b, *gradients[1]]):
        assert mine.shape == exact.shape and mine.dtype == torch.float32
        assert (mine - exact).abs().max() <= limit * (1 + exact.abs().max())
    with torch.no_grad():
        assert torch.equal(ours(*inputs), a)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SMALL, st.integers(2, 70), st.sampled_from([0.0, 1.0]), st.booleans())  # of one number alone the gradient is rounding
def test_norms(rows, n, offset, strided):
    def naive(x, weight):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (weight + offset)

    x = random(0, 3, rows, n)
    shape = (lambda x: x.transpose(0, 1)) if strided else (lambda x: x)
    check(lambda x, w: ops.rms_norm(shape(x), w, 1e-6, offset), lambda x, w: naive(shape(x), w), x, random(1, n), limit=1e-5)


def test_norms_of_frozen_weights_have_no_gradient_of_them():
    x, weight = random(0, 9, 5).requires_grad_(), random(1, 5)
    ops.rms_norm(x, weight, 1e-6).sum().backward()
    assert x.grad is not None and weight.grad is None


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40), st.integers(1, 20), st.booleans())
def test_rotary_embeddings(batch, heads, length, half, each):
    cos, sin = random(1, batch if each else 1, length, 2 * half), random(2, batch if each else 1, length, 2 * half)

    def naive(x):
        x = x.transpose(1, 2)
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * cos[:, None].double() + turned * sin[:, None].double()

    q, k = (random(0, batch, length, count, 2 * half).transpose(1, 2) for count in (heads, 1))
    assert ops.turns(q, k, cos, sin) and not ops.turns(q, k, cos[..., 1:], sin[..., 1:])
    check(lambda x: ops.rotary(x.transpose(1, 2), cos, sin), naive, random(0, batch, length, heads, 2 * half))


@settings(deadline=None, max_examples=40, derandomize=True)
@given(SMALL, SMALL, st.sampled_from([0.1, 3.0, 40.0]))
def test_gates(rows, n, size):
    gate, up = random(0, rows, n, size=size), random(1, rows, n)
    check(ops.swiglu, lambda gate, up: F.silu(gate) * up, gate, up)
    check(ops.swiglu_halves, lambda x: F.silu(x[:, :n]) * x[:, n:], torch.cat([gate, up], 1))


def test_the_exponential():
    """By the gate: silu(x) = x / (1 + exp(-x)), from where exp(-x) overflows to where it vanishes."""
    x = torch.linspace(-80, 80, 20001)
    exact = x.double() / (1 + (-x.double()).exp())
    ours = ops.swiglu(x, torch.ones_like(x))
    assert ((ours - exact).abs() <= 3e-7 * exact.abs() + 1e-30).all()
    odd = torch.tensor([math.nan, math.inf, -200.0])
    assert [*map(str, ops.swiglu(odd, torch.ones(3)).tolist())][:2] == ["nan", "inf"]
    assert abs(ops.swiglu(odd, torch.ones(3))[2]) < 1e-30


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(1, 200), st.integers(1, 6), st.integers(1, 4), st.integers(1, 20))
def test_experts(tokens, count, k, n):
    k, width = min(k, count), 8
    chosen = random(0, tokens, count).topk(k).indices
    weights, gate_up, down = random(1, tokens, k).abs(), random(2, count, 2 * width, n), random(3, count, n, width)
    choices = ops.sort_choices(chosen, count)
    expert, order = chosen.flatten().sort(stable=True)
    assert torch.equal(choices.order, order) and torch.equal(choices.ends, expert.bincount(minlength=count).cumsum(0).int())
    assert torch.equal(choices.order[choices.place], torch.arange(tokens * k))

    def naive(x, weights, gate_up, down):
        out = 0
        for j in range(k):
            halves = torch.einsum("th,tih->ti", x, gate_up[chosen[:, j]])
            gated = F.silu(halves[:, :width]) * halves[:, width:]
            out = out + weights[:, j, None] * torch.einsum("ti,thi->th", gated, down[chosen[:, j]])
        return out

    def ours(x, weights, gate_up, down):
        if not torch.is_grad_enabled():
            return ops.experts(x, chosen, weights, gate_up, down)
        x = ops.sent(x, choices)
        x = torch.cat([part @ gate_up[e].T for e, part in enumerate(x.tensor_split(choices.ends[:-1].tolist()))])
        x = ops.swiglu_halves(x)
        x = torch.cat([part @ down[e].T for e, part in enumerate(x.tensor_split(choices.ends[:-1].tolist()))])
        return ops.combine(x, weights, choices)

    inputs = random(4, tokens, n), weights, gate_up, down
    single, double = [x.clone().requires_grad_() for x in inputs], [x.double().requires_grad_() for x in inputs]
    a, b = ours(*single), naive(*double)
    for mine, exact in zip([a, *torch.autograd.grad(a.sum(), single)], [b, *torch.autograd.grad(b.sum(), double)]):
        assert (mine - exact).abs().max() <= 5e-6 * exact.abs().max() + 1e-30
    with torch.no_grad():
        assert (ours(*inputs) - b).abs().max() <= 5e-6 * b.abs().max()


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.integers(1, 12), st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 7, 24, 32, 40, 64, 128]),
    st.integers(1, 30), st.integers(1, 30), st.booleans(),
)  # fmt: skip
def test_attention_at_decoding(rows, groups, each, n, length, own, padded):
    q, prompt_of = random(0, rows, groups * each, n), torch.arange(rows) % 3
    prompt_keys, prompt_values = random(1, 3, groups, length, n), random(2, 3, groups, length, n)
    keys, values = (random(seed, rows, groups, own + 5, n)[:, :, :own] for seed in (3, 4))
    bias = torch.zeros(3, length)
    bias[1, : length // 2] = torch.finfo(torch.float32).min
    out = ops.attend(q, prompt_keys, prompt_values, prompt_of, bias if padded else None, keys, values, 0.3)
    all_keys, all_values = (
        torch.cat([prompt[prompt_of], mine], 2).repeat_interleave(each, 1).double()
        for prompt, mine in ((prompt_keys, keys), (prompt_values, values))
    )
    scores = (q.double()[:, :, None] @ all_keys.transpose(2, 3))[:, :, 0] * 0.3
    if padded:
        scores[..., :length] += bias[prompt_of, None].double()
    exact = (scores.softmax(-1)[:, :, None] @ all_values)[:, :, 0]
    assert (out - exact).abs().max() < 3e-6


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.sampled_from([4, 6, 24, 32, 64, 128]),
    st.integers(1, 20), st.integers(0, 20), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_step_of_attention_is_its_parts(rows, groups, each, n, length, own, normed, alone):
    q, prompt_of = random(0, rows, groups * each, n), torch.arange(rows) % 3
    k, v = random(5, rows, groups, n), random(6, rows, groups, n)
    prompts = random(1, 3, groups, length, n), random(2, 3, groups, length, n), prompt_of, None
    keys, values = (random(seed, rows, groups, own + 5, n) for seed in (3, 4))
    norms = (1 + random(7, n), 1 + random(8, n), 1e-3, 0.5) if normed else None
    cos, sin = random(9, 1 if alone else rows, n), random(10, 1 if alone else rows, n)

    def ready(x, weight):
        x = ops.rms_norm(x.contiguous(), weight, *norms[2:]) if normed else x
        return ops.rotary(x[:, :, None], cos[:, None], sin[:, None])[:, :, 0]

    mine = keys.clone(), values.clone()
    mine[0][:, :, own], mine[1][:, :, own] = ready(k, norms and norms[1]), v
    seen = [x[:, :, : own + 1] for x in mine]
    exact = ops.attend(ready(q, norms and norms[0]), *prompts, *seen, 0.3)
    out = ops.attend_step(q, k, v, norms, (cos, sin), prompts, (keys, values, own), 0.3)
    assert (out - exact).abs().max() < 1e-5
    assert torch.equal(values, mine[1]) and (keys - mine[0]).abs().max() < 1e-5


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    st.integers(1, 40), st.sampled_from([1, 2, 63, 64, 65, 200, 3001]), st.sampled_from([0.3, 1.0, 2.5]), st.integers(0, 9)
)
def test_words_are_drawn_by_inverse_cdf(rows, n, temperature, seed):
    logits = random(seed, rows, n, size=4.0)
    logits[:, ::3] -= 1e30  # impossible, but for the only word
    uniforms = torch.rand(rows, generator=torch.Generator().manual_seed(seed))
    uniforms[0] = 0.0
    uniforms[-1] = 1 - 2**-24
    words, logp = ops.draw(logits, uniforms, temperature)
    exact = (logits.double() / temperature).log_softmax(-1)
    cdf = exact.exp().cumsum(-1)
    mine = exact.gather(1, words[:, None])[:, 0]
    assert (mine - logp).abs().max() < 1e-5 * (1 + mine.abs().max())
    assert n == 1 or (words % 3 != 0).all()
    below = cdf.gather(1, words[:, None])[:, 0] - mine.exp()
    assert (below <= uniforms + 1e-6).all() and (uniforms <= below + mine.exp() + 1e-6).all()


def test_words_of_logits_that_are_not_finite():
    for bad in (torch.nan, torch.inf):
        for place in (0, 3, 99):
            logits = random(0, 2, 100)
            logits[1, place] = bad
            words, logp = ops.draw(logits, torch.tensor([0.5, 0.5]), 1.0)
            assert logp[0].isfinite() and logp[1].isnan() and ((words >= 0) & (words < 100)).all()
    words, logp = ops.draw(torch.full((1, 7), -torch.inf), torch.tensor([0.5]), 1.0)
    assert logp.isnan() and words == 0
