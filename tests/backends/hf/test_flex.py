"""FlexAttention over a forest. On a CPU it has a forward kernel alone, and a plain computation of both directions."""

import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention

from gspo.backends.hf import attention, flex
from gspo.backends.hf.flex import Blocks, block_mask, starts
from gspo.backends.hf.policy import HFPolicy
from gspo.learner import layout
from tests.backends.hf.families import tiny
from tests.backends.hf.test_attention import allowed, compare, forest_of, naive
from tests.backends.hf.test_policy import completions
from tests.learner.test_layout import random_completions, random_trees


@given(st.one_of(random_trees(), random_completions()), st.booleans(), st.sampled_from([None, 1, 2, 3, 5, 100]))
@settings(max_examples=150, deadline=None)
def test_the_mask_and_its_blocks(completions, share, window):
    forest = layout.build(completions, share).forest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "BLOCK", 4)
        mask = block_mask(forest.last, starts(forest.parent, window))
    size = len(forest.tokens)
    pairs, place = allowed(forest, window), torch.arange(size)
    assert torch.equal(mask.mask_mod(None, None, place[:, None], place[None]), pairs)
    blocks = -(-size // 4)
    room = torch.nn.functional.pad(pairs, (0, 4 * blocks - size, 0, 4 * blocks - size)).view(blocks, 4, blocks, 4)
    for i in range(blocks):
        mixed = mask.kv_indices[0, 0, i, : mask.kv_num_blocks[0, 0, i]].tolist()
        full = mask.full_kv_indices[0, 0, i, : mask.full_kv_num_blocks[0, 0, i]].tolist()
        assert not set(mixed) & set(full)
        rows = min(4, size - 4 * i)
        assert all(room[i, :rows, j, : min(4, size - 4 * j)].all() for j in full)
        assert {j for j in range(blocks) if room[i, :, j].any()} <= {*mixed, *full}


def test_blocks_that_nobody_looks_at_are_left_out():
    forest = forest_of((300, (200, 31, 290)), (270, (250, 120)), (40, (3, 4)))
    mask = Blocks(forest).mask(None)
    size, side = len(forest.tokens), mask.kv_num_blocks.shape[-1]
    pairs = torch.nn.functional.pad(layout.may_look(forest), (0, 128 * side - size, 0, 128 * side - size))
    needed = pairs.view(side, 128, side, 128).any(3).any(1)
    assert int(mask.kv_num_blocks.sum() + mask.full_kv_num_blocks.sum()) == int(needed.sum()) == 42 < side**2


@pytest.mark.parametrize("window", [None, 1, 50, 300])
def test_values_and_gradients(window, monkeypatch):
    monkeypatch.setattr(flex, "kernel", lambda: flex_attention)
    # The computation without a kernel has a backward pass on a CPU too; torch refuses it for the kernel's sake.
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *arguments: None)
    forest = forest_of((150, (100, 31)), (40, (3, 4)))
    compare(Blocks(forest), forest, window)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_few_compiled_kernels_for_all_forests():
    flex.kernel.cache_clear()
    draw = torch.Generator().manual_seed(0)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    forests = [forest_of((200, (20, 9)))]  # two blocks, as there are two key heads: such a coincidence takes a variant
    forests += [forest_of((300, (200, 31)), (270, (size,))) for size in (120, 60, 9, 300)] + [forest_of((20, (3, 4)))]
    for forest in forests:
        for window in (None, 50):
            q, k, v = (torch.randn(1, heads, len(forest.tokens), 16, generator=draw) for heads in (4, 2, 2))
            actual = Blocks(forest).attend(q, k, v, window, 0.3)[0]
            expected = naive(*(x[0].transpose(0, 1) for x in (q, k, v)), forest, window, 0.3)
            assert float((actual - expected).abs().max()) < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= before + 3 < flex.GRAPHS


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["qwen3_moe", "gemma3", "gpt2"])
def test_a_model_reads_a_forest_by_blocks(name, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(flex, "kernel", lambda: flex_attention)
    elif shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    model = tiny(name)
    batch = completions(model)
    if len(layout.build(batch, True).forest.tokens) % 32 == 8:
        batch = batch[1:]  # torch 2.13 then computes wrongly where a CPU has no AVX-512, under a plain causal mask too
    policy = HFPolicy(model, layout="shared")
    with torch.no_grad():
        plain = HFPolicy(model).forward(layout.build(batch)).logp
        monkeypatch.setattr(attention, "PreparedForest", Blocks)
        shared = policy.forward(layout.build(batch, True)).logp
    assert float((shared - plain).abs().max()) < 2e-5
