"""Loading, checks and the two halves of the forward pass."""

import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3ForConditionalGeneration,
    GenerationConfig,
    LlamaForCausalLM,
    MixtralConfig,
    masking_utils,
)

from gspo.backends.hf import experts
from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.lora import adapted, read_model
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.config.policy import LoraConfig, ModelConfig
from tests.backends.hf.families import FAMILIES, PIECES, TOKENIZER, tiny
from tests.backends.hf.folders import copy, load
from tests.backends.hf.test_routing import tiny as with_bias

TOKENS = torch.arange(2, 11)[None]


def test_dropout_noise_and_auxiliary_loss_are_off():
    config = FAMILIES["gpt2"] | {"resid_pdrop": 0.5, "attn_pdrop": 0.5, "embd_pdrop": 0.5}
    wrapped = build_tiny(config, TOKENIZER)
    wrapped.model.train()
    assert torch.equal(wrapped.hidden(input_ids=TOKENS), wrapped.hidden(input_ids=TOKENS))
    moe = tiny("mixtral").model
    assert not moe.config.output_router_logits and moe.config.router_aux_loss_coef == MixtralConfig().router_aux_loss_coef
    assert moe(input_ids=TOKENS, labels=TOKENS).get("aux_loss") is None


class Odd(LlamaForCausalLM):
    """Adds to its logits what no configuration tells."""

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = out.logits + torch.arange(out.logits.shape[-1])
        return out


def test_what_transformers_keeps_in_float32_stays(tmp_path):
    """Rotary frequencies, without which far positions are others, and the bias that chooses experts."""
    tiny("qwen3").save(tmp_path / "dense")
    with_bias("glm4_moe", vocab_size=len(TOKENIZER)).save_pretrained(tmp_path / "moe")
    TOKENIZER.save_pretrained(tmp_path / "moe")
    for name, kept in (("dense", "inv_freq"), ("moe", "e_score_correction_bias")):
        ours = load(tmp_path / name, dtype="bfloat16").model
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.bfloat16).eval()
        dtypes = [{n: x.dtype for n, x in (*m.named_parameters(), *m.named_buffers())} for m in (ours, theirs)]
        assert dtypes[0] == dtypes[1] and any(kept in n and t == torch.float32 for n, t in dtypes[0].items())
    ours, theirs = (
        load(tmp_path / "dense", dtype="bfloat16").model.eval(),
        AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.bfloat16).eval(),
    )
    far = torch.arange(200, 209)[None]
    logits = [model(input_ids=TOKENS, position_ids=far, use_cache=False).logits for model in (ours, theirs)]
    assert torch.equal(*logits)


def test_a_model_that_cannot_be_scored_exactly_is_refused():
    with pytest.raises(RuntimeError, match="Odd treats its logits in a way that gspo does not know"):
        wrap_model(Odd(tiny("llama").model.config), TOKENIZER)
    noisy, overflowing = tiny("llama").model, tiny("llama").model
    noisy.model.norm.register_forward_hook(lambda m, i, out: out + m.training)
    with pytest.raises(RuntimeError, match="in training than in evaluation mode"):
        wrap_model(noisy, TOKENIZER)
    overflowing.get_output_embeddings().weight.data.fill_(3e38)  # which is not the architecture's fault
    with pytest.raises(RuntimeError, match="logits that are not finite, though its weights are"):
        wrap_model(overflowing, TOKENIZER)


@pytest.mark.parametrize("shared", ["model.layers.1.mlp.gate_proj.weight", "lm_head.weight"])
def test_a_tie_that_nothing_declares_is_refused(shared):
    model = build_tiny(FAMILIES["llama"] | {"tie_word_embeddings": False}, TOKENIZER).model
    if shared == "lm_head.weight":
        model.lm_head.weight = model.model.embed_tokens.weight
    else:
        model.model.layers[1].mlp = model.model.layers[0].mlp
    with pytest.raises(ValueError, match=f"{shared} and model.* of LlamaForCausalLM are one tensor"):
        wrap_model(model, TOKENIZER)


def test_what_transformers_would_not_save_of_a_generation_config_is_reset(tmp_path, subtests):
    model = tiny("llama").model
    for name, value in {
        "temperature": 0.6, "early_stopping": True, "pad_token_id": -1, "length_penalty": 0.5, "max_new_tokens": 0,
        "cache_implementation": "mine", "output_scores": True,
    }.items():  # fmt: skip
        with subtests.test(name):
            model.generation_config = GenerationConfig(eos_token_id=1, do_sample=False)
            setattr(model.generation_config, name, value)
            wrap_model(model, TOKENIZER)
            model.generation_config.save_pretrained(tmp_path / name)
            again = GenerationConfig.from_pretrained(tmp_path / name)
            assert again.eos_token_id == 1 and not again.do_sample and getattr(again, name) in (None, False)
    model.generation_config.streamer = 3
    with pytest.raises(ValueError, match=r"generation_config\.json: Argument `streamer` is not a valid.* Mend it"):
        wrap_model(model, TOKENIZER)


def test_the_processor_of_a_multimodal_model_goes_with_it(tmp_path):
    text = {k: v for k, v in FAMILIES["gemma3"].items() if k not in ("model_type", "final_logit_softcapping")}
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    config = AutoConfig.for_model("gemma3", text_config=text | {"vocab_size": len(TOKENIZER)}, vision_config=tower)
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").write_text("{}")
    model = load(tmp_path / "model")
    adapters = adapted(model, LoraConfig(rank=2, targets=["q_proj"]))
    for name, merged in (("whole", True), ("adapter", False)):
        adapters.save(tmp_path / name, merged)
        assert (tmp_path / name / "preprocessor_config.json").read_text() == "{}"
        assert not (tmp_path / name / "processor_config.json").exists()
    (tmp_path / "adapter" / "preprocessor_config.json").unlink()  # as PEFT alone writes an adapter
    assert read_model(ModelConfig(str(tmp_path / "adapter"))).processor == model.processor


def test_local_attention_of_another_name_is_no_full_attention():
    shape = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 256}
    local = {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 1]], "window_size": 8}
    assert not build_tiny(local | shape, TOKENIZER).has_full_attention
    assert build_tiny(local | shape | {"attention_types": [[["global"], 2]]}, TOKENIZER).has_full_attention


def test_a_model_that_was_trained_is_taken_as_it_was_before():
    wrapped = tiny("qwen3")
    HFPolicy(wrapped, layout="auto")
    again = wrap_model(wrapped.model, TOKENIZER)
    assert again.attention == "gspo" and again.has_full_attention


def test_experts(saved):
    states = []
    for kernel, expected in (("auto", experts.NAME), ("grouped_mm", "grouped_mm"), ("eager", "eager")):
        wrapped = load(saved, expert_kernels=kernel)
        assert wrapped.config._experts_implementation == expected
        states.append(wrapped.hidden(input_ids=TOKENS))
    assert torch.allclose(states[0], states[2], atol=1e-5)


def test_sdpa_falls_back_to_eager(tmp_path, caplog):
    tiny("gemma2").save(tmp_path)
    assert load(tmp_path).attention == "eager"
    assert "no sdpa attention" in caplog.text


def test_pickled_weights(saved, tmp_path):
    folder, wrapped = copy(saved, tmp_path, ["*.safetensors"]), tiny("qwen3_moe")
    torch.save(wrapped.model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"pickled only .*model.allow_pickle = true"):
        load(folder)
    assert torch.equal(load(folder, allow_pickle=True).hidden(input_ids=TOKENS), wrapped.hidden(input_ids=TOKENS))


def test_tokenizers_that_do_not_fit():
    with pytest.raises(ValueError, match="the model embeds only 20 tokens"):
        build_tiny(FAMILIES["llama"] | {"vocab_size": 20}, TOKENIZER)
    model, tokenizer = tiny("llama").model, longest_match_tokenizer(PIECES)
    tokenizer.eos_token = None
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="end-of-sequence token"):
        wrap_model(model, tokenizer)


def test_arts_patch_for_transformers_4_is_undone(monkeypatch):
    ours = masking_utils._preprocess_mask_arguments
    monkeypatch.setattr(masking_utils, "_preprocess_mask_arguments", lambda: None)  # as after `import art`
    monkeypatch.setitem(sys.modules, "art.transformers.patches", SimpleNamespace(_preprocess_mask_arguments=ours))
    tiny("qwen3")  # which runs the model
    assert masking_utils._preprocess_mask_arguments is ours
