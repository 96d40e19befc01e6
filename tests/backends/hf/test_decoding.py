"""Attention layers that decode by one kernel: the same numbers as their own forward pass, and only where it is known."""

import copy
import sys

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, apply_rotary_pos_emb

from gspo.backends.hf import decoding, fused
from gspo.backends.hf.kv_cache import FIRST_BLOCK
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import LoraConfig, ModelConfig
from gspo.types import Sampling
from tests.backends.hf.families import FAMILIES, TOKENIZER, prompts

pytestmark = pytest.mark.skipif(fused.library() is None, reason="no C++ compiler here")


def model_of(family, kernels="auto"):
    model = build_tiny(FAMILIES[family], TOKENIZER, 0, ModelConfig(device="cpu", kernels=kernels))
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if "norm" in name:  # all ones say little
                weight.mul_(1 + torch.rand(weight.shape, generator=torch.Generator().manual_seed(len(name))))
    return model


def placed(model):
    return [m for m in model.model.modules() if getattr(vars(m).get("forward"), "__func__", None) is decoding.forward]


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("qwen3_moe", 2), ("qwen3", 2), ("llama", 2), ("mixtral", 2), ("granite", 2),
        ("olmoe", 0), ("cohere", 0), ("gpt2", 0), ("gemma2", 0), ("gemma3", 0), ("bloom", 0), ("mamba", 0),
    ],
)  # fmt: skip  # OLMoE normalises all heads at once, Cohere turns neighbours, Gemma looks through a window
def test_completions_are_the_same_whatever_decodes(family, layers):
    request = prompts(3, 11, 7, 7, 25), 4, Sampling(max_new_tokens=FIRST_BLOCK + 9, stop_ids=(1, 5, 6), seed=3)
    model = model_of(family)
    ours = HFSampler(model).generate(*request)
    assert len(placed(model)) == layers
    for a, b in zip(HFSampler(model_of(family, "torch")).generate(*request), ours, strict=True):
        assert torch.equal(a.tokens, b.tokens) and (a.logp - b.logp).abs().max() < 2e-5


def test_the_kernel_is_what_decodes(monkeypatch):
    calls = []
    step = decoding.fused.attend_step
    monkeypatch.setattr(decoding.fused, "attend_step", lambda *given: calls.append(given) or step(*given))
    sampler = HFSampler(model_of("qwen3_moe"))
    calls.clear()
    sampler.generate(prompts(3, 11), 4, Sampling(max_new_tokens=10, seed=3))
    assert len(calls) == 2 * (10 - 2)  # layers; the first token's position, and after the last nothing is read


def test_adapters_on_the_projections_count():
    model = adapted(model_of("qwen3"), LoraConfig(rank=2))
    sampler = HFSampler(model)
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3, generator=torch.Generator().manual_seed(len(name)))
    assert placed(model)
    assert error(model, sampler.generate(prompts(3, 11), 2, Sampling(max_new_tokens=9, seed=3))) < 2e-5


def test_a_plain_pass_and_its_gradient_are_the_models_own():
    plain, model = model_of("qwen3", "torch"), model_of("qwen3")
    HFSampler(model)
    ids = torch.arange(2, 20)[None] % len(TOKENIZER)
    for each in (plain, model):
        each.hidden(input_ids=ids).square().sum().backward()
    for a, b in zip(plain.model.parameters(), model.model.parameters(), strict=True):
        assert a.grad is b.grad is None or (a.grad - b.grad).abs().max() <= 2e-5 * a.grad.abs().max() + 1e-12


class NormsAfter(Qwen3Attention):
    """Turns first and normalises then, as some families do: the same while the norms' weights are ones."""

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (getattr(self, f"{name}_proj")(hidden_states).view(shape).transpose(1, 2) for name in "qkv")
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
        return self.rest(self.q_norm(q), self.k_norm(k), v, attention_mask, past_key_values, **kwargs)

    def rest(self, q, k, v, attention_mask, past_key_values, **kwargs):
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        out, _ = attend(self, q, k, v, attention_mask, scaling=self.scaling, **kwargs)
        return self.o_proj(out.reshape(*out.shape[:2], -1)), None


class Known(NormsAfter):
    """Qwen3's attention in other words."""

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (getattr(self, f"{name}_proj")(hidden_states).view(shape).transpose(1, 2) for name in "qkv")
        q, k = apply_rotary_pos_emb(self.q_norm(q), self.k_norm(k), *position_embeddings)
        return self.rest(q, k, self.changed(v), attention_mask, past_key_values, **kwargs)

    def changed(self, v):
        return v


class Scaled(Known):
    def changed(self, v):
        return v * 1.001


class Clamped(Known):
    """Of what the trial's usual numbers do not reach."""

    def changed(self, v):
        return v.clamp(-100, 100)


class FarAway(Known):
    """Another from a place on, as those whose queries grow with the logarithm of theirs."""

    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values=None, **kwargs):
        grown = 1 + 0.1 * (kwargs["position_ids"] > 8192)[..., None]
        return super().forward(hidden_states * grown, position_embeddings, attention_mask, past_key_values, **kwargs)


class Broken(Known):
    def changed(self, v):
        raise KeyError("of its own")


class TakesMore(Known):
    def forward(self, hidden_states, position_embeddings, attention_mask, past_key_values=None, window=None, **kwargs):
        return super().forward(hidden_states, position_embeddings, attention_mask, past_key_values, **kwargs)


class Gated(Known):
    def __init__(self, *given):
        super().__init__(*given)
        self.gate = torch.nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("kind", "count"),
    [(Known, 2), (NormsAfter, 0), (Scaled, 0), (Clamped, 0), (FarAway, 0), (Broken, 0), (TakesMore, 0), (Gated, 0)],
)
def test_near_relatives_are_told_apart(monkeypatch, kind, count):
    model = build_tiny(FAMILIES["qwen3"], TOKENIZER, 0, ModelConfig(device="cpu"))
    family = sys.modules["transformers.models.qwen3.modeling_qwen3"]
    monkeypatch.setattr(sys.modules[__name__], "apply_rotary_pos_emb", family.apply_rotary_pos_emb)
    monkeypatch.setattr(kind, "__module__", family.__name__)
    for layer in model.model.model.layers:
        old = layer.self_attn
        layer.self_attn = kind(old.config, old.layer_idx)
        for name in decoding.NORMS:
            setattr(layer.self_attn, name, getattr(old, name))
    before = torch.get_rng_state()
    assert decoding.place(model.model) == count == len(placed(model))
    assert torch.equal(before, torch.get_rng_state())
    assert decoding.place(model.model) == 0  # a second sampler of the same model


def test_norms_that_are_not_the_kernels_are_left():
    model = build_tiny(FAMILIES["qwen3"], TOKENIZER, 0, ModelConfig(device="cpu"))
    first, second = (layer.self_attn for layer in model.model.model.layers)
    first.k_norm.variance_epsilon = 0.1  # one kernel has one eps
    del second.q_norm.forward  # no kernel's
    assert decoding.place(model.model) == 0


def error(model, rollouts):
    """Largest difference of the likelihoods from those of a plain pass."""
    found = 0.0
    for rollout in rollouts:
        with torch.no_grad():
            logp = model.logits(model.hidden(input_ids=rollout.tokens[None]))[0].log_softmax(-1)
        exact = logp[:-1].gather(1, rollout.tokens[1:, None])[:, 0][rollout.sampled[1:]]
        found = max(found, float((exact - rollout.logp[rollout.sampled]).abs().max()))
    return found


def hooked(norm):
    norm.register_forward_hook(lambda module, given, out: 2 * out)


def strided(norm):
    norm.weight.data = torch.rand(2 * norm.weight.numel())[::2]


def without_kernel(norm):
    del norm.forward


@pytest.mark.parametrize("change", [hooked, strided, without_kernel])
def test_norms_that_change_after_the_trial_count(change):
    model = model_of("qwen3")
    sampler = HFSampler(model)
    assert len(placed(model)) == 2
    change(model.model.model.layers[0].self_attn.q_norm)
    assert error(model, sampler.generate(prompts(3, 11), 2, Sampling(max_new_tokens=9, seed=3))) < 2e-5


SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}  # fmt: skip


def made(table):
    return build_tiny(SHAPE | table, TOKENIZER, 0, ModelConfig(device="cpu"))


def test_clamped_projections_are_clamped():
    model = made({"model_type": "olmo", "clip_qkv": 12.0})
    sampler = HFSampler(model)
    with torch.no_grad():
        for name, weight in model.model.named_parameters():
            if "q_proj" in name or "k_proj" in name or "v_proj" in name:
                weight[:2] *= 40
    assert error(model, sampler.generate(prompts(3, 11), 4, Sampling(max_new_tokens=12, seed=3))) < 5e-5
    assert not placed(model)


@pytest.mark.parametrize(
    "table",
    [
        {
            "model_type": "granitemoehybrid", "position_embedding_type": "nope", "layer_types": ["full_attention"] * 2,
            "layers_block_type": ["attention"] * 2, "num_local_experts": 0, "shared_intermediate_size": 32,
            "mamba_n_heads": 4, "mamba_d_head": 16,
        },
        {
            "model_type": "glm4_moe", "partial_rotary_factor": 0.5, "head_dim": 8, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 0,
        },
    ],
    ids=["no rotary embeddings", "rotary embeddings of half a head"],
)  # fmt: skip
def test_layers_for_which_the_kernel_is_not_go_their_own_way_at_once(table):
    model = made(table)
    sampler = HFSampler(model)
    assert sampler.shares
    calls = []
    model.model.model.layers[0].self_attn.q_proj.register_forward_hook(lambda *given: calls.append(1))
    rollouts = sampler.generate(prompts(3, 11), 4, Sampling(max_new_tokens=12, seed=3))
    assert len(calls) == 12
    assert error(model, rollouts) < 2e-5


def test_what_is_tried_is_the_kernel():
    model = model_of("qwen3")
    with torch.autocast("cpu", torch.bfloat16):
        assert decoding.place(model.model) == 0
    assert decoding.place(model.model) == 2


def test_models_are_copied_and_pickled_as_before(tmp_path):
    model = model_of("qwen3")
    HFSampler(model)
    ids = torch.arange(2, 9)[None]
    torch.save(model.model, tmp_path / "model.pt")
    read = torch.load(tmp_path / "model.pt", weights_only=False)
    for other in (copy.deepcopy(model.model), read):
        with torch.no_grad():
            other.model.layers[0].self_attn.v_proj.weight.mul_(2)
            assert not torch.allclose(other(ids).logits, model.model(ids).logits, atol=1e-3)
            other.model.layers[0].self_attn.v_proj.weight.div_(2)
            torch.testing.assert_close(other(ids).logits, model.model(ids).logits)
