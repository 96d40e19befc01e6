"""Attention over a forest against a naive softmax under the forest's mask, in float64."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.backends.hf import attention
from gspo.backends.hf.attention import Forested, PreparedForest
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny
from gspo.backends.hf.tree_segments import plan
from gspo.config.policy import ModelConfig
from gspo.learner import layout
from tests.backends.hf.families import FAMILIES, FULL_ATTENTION, TOKENIZER, tiny
from tests.backends.hf.test_policy import completions
from tests.learner.test_layout import completion, random_completions, random_trees

family = cache(tiny)
SHARES = {*FULL_ATTENTION, "gemma3"}


def allowed(forest, window):
    """[T, T] bool: who may look at whom."""
    pairs = layout.may_look(forest)
    return pairs if window is None else pairs & (forest.position[:, None] - forest.position < window)


def naive(q, k, v, forest, window, scale):
    """Softmax over all that a token may look at: [T, H, D]."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (torch.einsum("ihd,jhd->hij", q, k) * scale).masked_fill(~allowed(forest, window), -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)


def forest_of(*cases):
    """The forest of prompts with completions of these lengths."""
    lengths = [(prompt, i, size) for prompt, sizes in cases for i, size in enumerate(sizes)]
    return layout.build([completion(range(p), size, first=10_000 * i + 1000) for p, i, size in lengths], True).forest


def compare(prepared, forest, window, heads=(4, 2), seed=0):
    """Values and gradients of a prepared forest's attention against the naive ones."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [(len(forest.tokens), count, 16) for count in (heads[0], heads[1], heads[1])]
    ours = [torch.randn(shape, dtype=torch.float64, generator=draw).requires_grad_() for shape in shapes]
    theirs = [x.detach().clone().requires_grad_() for x in ours]
    actual = prepared.attend(*(x.transpose(0, 1)[None] for x in ours), window, 0.3)[0]
    expected = naive(*theirs, forest, window, 0.3)
    gradient = torch.randn(actual.shape, dtype=torch.float64, generator=draw)
    actual.backward(gradient)
    expected.backward(gradient)
    for a, b in zip((actual.detach(), *(x.grad for x in ours)), (expected.detach(), *(x.grad for x in theirs))):
        assert float((a - b).abs().max()) < 1e-12


@given(
    st.one_of(random_trees(), random_completions()),
    st.booleans(),
    st.sampled_from([None, 1, 2, 3]),
    st.sampled_from([(4, 2), (2, 2), (3, 1)]),
)
@settings(max_examples=150, deadline=None)
def test_any_forest_any_window(completions, share, window, heads):
    forest = layout.build(completions, share).forest
    parts = PreparedForest(forest)
    compare(parts, forest, None if window is None or window >= parts.depth else window, heads)


@pytest.mark.parametrize("window", [None, 50])
def test_long_trunks_of_different_length(window):
    forest = forest_of((300, (20, 31, 9)), (270, (25, 12)), (40, (3, 4)))
    assert any(not piece.causal for piece in plan(forest))
    compare(PreparedForest(forest), forest, window)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_families_that_share(name):
    model = tiny(name)
    before = model.attention
    assert (attention.refusal(model) == "") == (name in SHARES)
    assert model.attention == ("gspo" if name in SHARES else before)


def test_a_model_that_cannot_share_is_read_in_rows():
    assert HFPolicy(family("bloom"), layout="auto").layout == "padded"
    with pytest.raises(ValueError, match=r'"shared" does not work with Bloom.*: it runs eager.*"padded"'):
        HFPolicy(family("bloom"), layout="shared")


def test_layers_that_attend_otherwise_than_is_known_are_noticed():
    scaled, windowed = tiny("llama"), tiny("gemma3")
    scaled.config.attn_temperature_tuning = True  # queries scaled by their place in the row, as in Llama 4
    next(m for m in windowed.model.modules() if getattr(m, "sliding_window", None)).sliding_window = 9
    for model, why in ((scaled, "does not know"), (windowed, "windows of [9")):
        assert why in attention.refusal(model) and model.attention == "sdpa"


def test_other_attention_fails_on_a_forest_rather_than_being_wrong():
    model, forest = tiny("llama"), layout.build([completion([5, 6], 3, first=7)]).forest
    inputs = attention.forest_inputs(forest, model.device)
    with pytest.raises((RuntimeError, IndexError, ValueError)):
        model.hidden(input_ids=forest.tokens[None], position_ids=forest.position[None], **inputs)


def test_wrong_gradients_are_noticed(monkeypatch):
    right = Forested.backward

    def blind(ctx, *grads):
        dq, *others = right(ctx, *grads)
        return torch.zeros_like(dq), *others

    monkeypatch.setattr(Forested, "backward", staticmethod(blind))
    assert "gradients" in attention.refusal(tiny("qwen3"))


def test_the_reason_of_a_failure_is_told(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("out of resource\nat line 1")

    monkeypatch.setattr(PreparedForest, "attend", broken)
    with pytest.raises(ValueError, match=r'"shared" does not work with Qwen3.* here: RuntimeError: out of resource. Use'):
        HFPolicy(tiny("qwen3"), layout="shared")
    assert HFPolicy(tiny("qwen3"), layout="auto").unshared.endswith("RuntimeError: out of resource")


def test_a_deep_model_in_half_precision_shares():
    config = FAMILIES["qwen3"] | {"num_hidden_layers": 28, "initializer_range": 0.02}
    model = build_tiny(config, TOKENIZER, 0, ModelConfig(device="cpu", dtype="bfloat16"))
    assert model.model.dtype == torch.bfloat16 and not attention.refusal(model)


def test_unknown_arguments_are_refused():
    q = torch.zeros(1, 2, 1, 8)
    parts = PreparedForest(layout.build([completion([5], 1)]).forest)
    with pytest.raises(NotImplementedError, match="softcap"):
        attention.attention(None, q, q, q, None, forest=parts, softcap=3.0)


def test_half_precision():
    model = family("llama")  # made here, for it is checked in its own precision
    with torch.autocast("cpu", torch.bfloat16):
        batch = completions(model)
        shared = HFPolicy(model, layout="shared").forward(layout.build(batch, True)).logp
        padded = HFPolicy(model, layout="padded").forward(layout.build(batch)).logp
    assert float((shared - padded).abs().max()) < 0.05
