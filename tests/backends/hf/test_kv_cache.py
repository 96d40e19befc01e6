"""Decoding with one copy of each prompt: the completions of plain decoding, also where rows end or prompts are padded."""

import dataclasses

import pytest
import torch

from gspo.backends.hf import sampler as sampling
from gspo.backends.hf.kv_cache import FIRST_BLOCK, NAME, SharedCache, attend, shared_attention
from gspo.backends.hf.sampler import HFSampler
from gspo.types import Sampling
from tests.backends.hf.adapters import with_adapters
from tests.backends.hf.families import FAMILIES, FULL_ATTENTION, prompts, tiny
from tests.backends.hf.test_sampler import check_logp, same


@pytest.fixture(autouse=True)
def shared_however_small(monkeypatch):
    monkeypatch.setattr(sampling, "SHARED_KEYS", 0)


def plain(model, *request, **kwargs):
    sampler = HFSampler(model, **kwargs)
    sampler.shares = False
    return sampler.generate(*request)


@pytest.mark.parametrize("family", FAMILIES)
def test_completions_and_likelihoods_are_those_of_plain_decoding(family):
    model = tiny(family)
    sampler = HFSampler(model, batch_size=11)
    assert sampler.shares == sampler.plain_cache == (family in FULL_ATTENTION)
    request = prompts(3, 11, 7, 7, 25), 4, Sampling(max_new_tokens=20, temperature=0.8, stop_ids=(1, 5, 6), seed=3)
    rollouts, usual = sampler.generate(*request), plain(model, *request, batch_size=7)
    assert model.attention != NAME and len({len(r.tokens) for r in rollouts}) > 5  # rows end apart
    assert same(rollouts, usual)
    check_logp(model, [*rollouts, *usual], 0.8)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_long_completions(attention):
    model = tiny("qwen3_moe")
    model.model.set_attn_implementation(attention)
    request = prompts(40, 1, 17), 2, Sampling(max_new_tokens=FIRST_BLOCK + 20, stop_ids=(3,), seed=1)
    shared, usual = HFSampler(model).generate(*request), plain(model, *request)
    assert same(shared, usual)
    check_logp(model, [*shared, *usual])


def test_prompts_all_of_whose_completions_ended_are_forgotten(monkeypatch):
    counts, arrange, model = [], SharedCache._arrange, tiny("qwen3")
    sampler = HFSampler(model)
    monkeypatch.setattr(
        SharedCache, "_arrange", lambda self: (arrange(self), counts.append(len(self.layers[0].prompt_keys)))
    )
    request = prompts(5, 9, 9, 6), 2, Sampling(max_new_tokens=40, stop_ids=tuple(range(2, 9)), seed=1)
    assert same(sampler.generate(*request), plain(model, *request))
    assert counts == sorted(counts, reverse=True) and counts[0] == 4 > counts[-1]


def test_few_copies_are_not_worth_it(monkeypatch):
    shared, fan_out, sampler = [], SharedCache.fan_out, HFSampler(tiny("qwen3"))
    monkeypatch.setattr(SharedCache, "fan_out", lambda self, *args: (shared.append(1), fan_out(self, *args)))
    monkeypatch.setattr(sampling, "SHARED_KEYS", 1000 * sampler.key_width)
    for length, expected in ((99, 0), (100, 1)):  # 11 completions: 10 copies
        sampler.generate(prompts(length), 11, Sampling(max_new_tokens=2))
        assert len(shared) == expected


def test_attention_of_other_kinds_is_refused():
    x = torch.zeros(2, 4, 1, 8)
    with pytest.raises(NotImplementedError, match="attends in a way of its own"):
        attend(torch.nn.Identity(), x, x, x, None, softcap=3.0)


def test_adapters_and_half_precision():
    adapters = with_adapters(tiny("qwen3_moe"), targets=["all-linear"])
    request = prompts(3, 11, 7), 4, Sampling(max_new_tokens=15, stop_ids=(1, 5), seed=3)
    sampler = HFSampler(adapters)
    assert sampler.shares and same(sampler.generate(*request), plain(adapters, *request))
    half = dataclasses.replace(tiny("qwen3"), autocast=torch.bfloat16)
    shared, usual = HFSampler(half), plain(half, *request)
    assert shared.shares
    for actual, expected in zip(shared.generate(*request), usual):
        first = len(actual.prompt.tokens)  # later ones may differ by a rounding
        assert actual.tokens[first] == expected.tokens[first]
        assert abs(float(actual.logp[first] - expected.logp[first])) < 0.05


def test_another_thread_reads_the_model_while_it_decodes():
    model, ids = tiny("qwen3"), torch.tensor([[2, 3, 4, 5]])
    expected = model.hidden(input_ids=ids)
    with shared_attention(model.config):
        assert torch.equal(model.hidden(input_ids=ids), expected)
        with shared_attention(model.config):
            pass
        assert model.attention == NAME  # the first is still within
    assert model.attention == "sdpa"
