"""The embedded sampler: its likelihoods, its randomness, and how completions end."""

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny
from gspo.learner.weights import PolicyWeights
from gspo.types import Prompt, Sampling
from tests.backends.hf.families import FAMILIES, TOKENIZER, prompts, tiny
from tests.backends.hf.test_draw import naive


def full_forward(model, rollout, temperature=1.0):
    """Log-distributions [L - 1, V] of tokens 1.. by one plain forward pass over the whole row."""
    model.model.eval()
    with torch.no_grad():
        logits = model.logits(model.hidden(input_ids=rollout.tokens[None])[0, :-1])
    return (logits / temperature).log_softmax(-1)


def check_logp(model, rollouts, temperature=1.0, **tolerance):
    for rollout in rollouts:
        logp = full_forward(model, rollout, temperature).gather(-1, rollout.tokens[1:, None])[:, 0]
        torch.testing.assert_close(
            logp[rollout.sampled[1:]], rollout.logp[rollout.sampled], **{"rtol": 0, "atol": 1e-5} | tolerance
        )
        assert rollout.logp.dtype == torch.float32 and not rollout.logp[~rollout.sampled].any()


def same(a, b):
    return all(torch.equal(x.tokens, y.tokens) and x.stop == y.stop and x.text == y.text for x, y in zip(a, b))


def test_top_k_and_top_p_in_a_run():
    model = tiny("qwen3_moe")
    sampling = Sampling(max_new_tokens=8, temperature=1.3, top_k=6, top_p=0.8)
    for rollout in HFSampler(model).generate(prompts(6, 9), 4, sampling):
        logits = full_forward(model, rollout)
        for t in range(int((~rollout.sampled).sum()), len(rollout.tokens)):
            want = torch.tensor(naive(logits[t - 1], sampling)[int(rollout.tokens[t])]).log()
            assert abs(want - rollout.logp[t]) < 1e-5


def test_greedy():
    model = tiny("llama")
    (rollout,) = HFSampler(model).generate(prompts(6), 1, Sampling(max_new_tokens=10, temperature=0))
    best = full_forward(model, rollout).argmax(-1)
    assert torch.equal(best[5:], rollout.tokens[6:]) and not rollout.logp.any()


def test_frequencies_match_probabilities():
    model, n = tiny("qwen3_moe"), 4000
    rollouts = HFSampler(model, 1000).generate(prompts(5), n, Sampling(max_new_tokens=2, seed=11))
    pairs = torch.stack([rollout.tokens[5:] for rollout in rollouts])
    first = full_forward(model, rollouts[0])[4].exp()
    counts, expected = torch.bincount(pairs[:, 0], minlength=len(first)).double(), first.double() * n
    assert expected.min() > 5  # as the test needs
    freedom = len(counts) - 1
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert freedom > 5 and abs(chi2 - freedom) < 4 * (2 * freedom) ** 0.5


def test_completions_depend_on_seed_place_and_number_only():
    model, queries = tiny("qwen3_moe"), prompts(4, 12, 12, 30, 1)
    sampling = Sampling(max_new_tokens=15, stop_ids=(1, 4, 9), seed=5)
    whole = HFSampler(model, 256).generate(queries, 4, sampling)
    assert same(whole, HFSampler(model, 256).generate(queries, 4, sampling))
    for batch_size in (1, 3, 8):
        assert same(whole, HFSampler(model, batch_size).generate(queries, 4, sampling))
    assert same(whole[:2], HFSampler(model).generate(queries[:1], 2, sampling))  # other rows, fewer completions
    a, b = HFSampler(model).generate([queries[1]] * 2, 1, Sampling(max_new_tokens=15, seed=5))
    assert not torch.equal(a.tokens, b.tokens)  # the same prompt twice is sampled independently
    before = torch.random.get_rng_state()
    assert not same(whole, HFSampler(model).generate(queries, 4, dataclasses.replace(sampling, seed=6)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_fields_of_a_rollout():
    model = tiny("qwen3_moe")
    sampler, queries = HFSampler(model), prompts(4, 9)
    sampler.version = 7
    model.model.train()
    rollouts = sampler.generate(queries, 3, Sampling(max_new_tokens=30, stop_ids=tuple(range(1, 12))))
    assert model.model.training
    assert [r.prompt for r in rollouts] == [queries[0]] * 3 + [queries[1]] * 3
    for r in rollouts:
        start = len(r.prompt.tokens)
        assert tuple(r.tokens[:start].tolist()) == r.prompt.tokens and r.tokens.dtype == torch.int64
        assert r.sampled.tolist() == [False] * start + [True] * (len(r.tokens) - start)
        assert r.version.tolist() == [-1] * start + [7] * (len(r.tokens) - start)
        assert r.stop == "eos" and 1 <= r.tokens[-1] < 12 and all(t >= 12 for t in r.tokens[start:-1])
        assert r.text == TOKENIZER.decode(r.tokens[start:-1])  # without its end
        assert not r.logp.is_inference() and not r.logp.requires_grad
    for r in sampler.generate(queries, 2, Sampling(max_new_tokens=1)):
        assert r.stop == "length" and r.sampled.sum() == 1
    for r in sampler.generate(queries, 2, Sampling(max_new_tokens=9, stop_ids=tuple(range(len(TOKENIZER))))):
        assert r.stop == "eos" and r.sampled.sum() == 1


@pytest.mark.parametrize("family", [*FAMILIES, "dynamic rope"])
def test_the_model_trains_after_it_sampled(family):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    config = FAMILIES["llama"] | {"rope_parameters": rope, "max_position_embeddings": 24}
    model = build_tiny(config, TOKENIZER) if family == "dynamic rope" else tiny(family)
    (rollout,) = HFSampler(model).generate(prompts(4), 1, Sampling(max_new_tokens=20))
    model.model.train()
    logp, _ = model.head.logprobs(model.hidden(input_ids=rollout.tokens[None])[0, :-1], rollout.tokens[1:])
    (logp * rollout.logp[1:]).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.model.parameters() if p.grad is not None)
    assert model.model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_progress_and_empty():
    counts = []
    sampler = HFSampler(tiny("llama"), batch_size=4)
    sampler.generate(prompts(4, 5, 6), 3, Sampling(max_new_tokens=12, stop_ids=tuple(range(2, 20))), counts.append)
    assert counts == sorted(counts) and counts[-1] == 9 and counts[0] >= 1
    assert sampler.generate([], 4, Sampling(max_new_tokens=3)) == []


def test_new_weights():
    sampler, donor = HFSampler(tiny("llama")), tiny("llama", seed=1)
    sampler.load(PolicyWeights(HFPolicy(donor), version=3))
    queries, sampling = prompts(4, 6), Sampling(max_new_tokens=6)
    rollouts = sampler.generate(queries, 2, sampling)
    assert same(rollouts, HFSampler(donor).generate(queries, 2, sampling)) and rollouts[0].version[-1] == 3


def test_prompts_that_do_not_fit():
    sampler = HFSampler(tiny("llama"))
    with pytest.raises(ValueError, match=r"prompt 1 \(id 'p1'\) has 250 tokens, and with up to 10 .* 260: .* at most 256"):
        sampler.generate(prompts(4, 250), 2, Sampling(max_new_tokens=10))
    with pytest.raises(ValueError, match=r"prompt 0 \(id 'nil'\) has no tokens"):
        sampler.generate([Prompt("nil", "", ())], 2, Sampling(max_new_tokens=10))
    with pytest.raises(ValueError, match="max_new_tokens = 0"):
        sampler.generate(prompts(4), 2, Sampling(max_new_tokens=0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_weights_are_an_error(temperature):
    sampler = HFSampler(tiny("llama"))
    with torch.no_grad():
        next(sampler.model.model.parameters()).fill_(float("nan"))
    with pytest.raises(RuntimeError, match="not finite"):
        sampler.generate(prompts(4), 2, Sampling(max_new_tokens=3, temperature=temperature))


def test_a_model_that_reads_images_samples_and_scores_text():
    """Its text part alone is used."""
    shape = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0,
        "intermediate_size": 64, "max_position_embeddings": 256, "vocab_size": len(TOKENIZER), "bos_token_id": None,
        "eos_token_id": 1, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }  # fmt: skip
    tower = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32}
    config = AutoConfig.for_model("qwen2_5_vl", text_config=shape, vision_config=tower)
    torch.manual_seed(0)
    model = wrap_model(AutoModelForImageTextToText.from_config(config), TOKENIZER)
    rollouts = HFSampler(model).generate(prompts(3, 5), 2, Sampling(max_new_tokens=6, stop_ids=(1,)))
    check_logp(model, rollouts, rtol=1e-4)


_HYBRID = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 256, "initializer_range": 0.2, "head_dim": 8,
}  # fmt: skip


def test_a_hybrid_whose_cache_does_not_know_the_place_is_told_it():
    """Bamba's first layer is none of attention, so its cache has no length."""
    model = build_tiny(
        {"model_type": "bamba", **_HYBRID, "attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 8,
         "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}, TOKENIZER,
    )  # fmt: skip
    rollouts = HFSampler(model).generate(prompts(3, 5, 5), 2, Sampling(max_new_tokens=20, stop_ids=model.stop_ids))
    check_logp(model, rollouts, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("family", "why"),
    [({"model_type": "minimax", "layer_types": ["linear_attention", "full_attention"] * 2, "num_local_experts": 4},
      "cannot be read token by token"),
     ({"model_type": "recurrent_gemma", "lru_width": 32, "attention_window_size": 16}, "gives other results"),
     ({"model_type": "rwkv", "hidden_size": 32, "num_hidden_layers": 2}, "gives other results")],
)  # fmt: skip
def test_a_model_whose_cache_cannot_be_used_is_refused_in_our_words(family, why):
    with pytest.raises(RuntimeError, match=f'ForCausalLM .*{why}.*: use sampler.engine = "vllm"'):
        HFSampler(build_tiny(_HYBRID | family, TOKENIZER))
