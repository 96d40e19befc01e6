"""What a pass without numbers finds, against a pass with them."""

import json

import pytest
import torch

from gspo.backends.hf.load import load_model
from gspo.backends.hf.lora import adapted, packed
from gspo.config.policy import LoraConfig, ModelConfig
from gspo.plan.activation_memory import measure
from tests.tiny_run import model

MIXTURE = {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": 2, "expert_width": 48, "experts": 8, "vocab_size": 40}
SIZES = {"mixture": MIXTURE, "dense": MIXTURE | {"model_type": "qwen3", "intermediate_size": 160}}
SIZES["untied"] = SIZES["dense"] | {"tie_word_embeddings": False}
ADAPTERS = {"mixture": ["all-linear", "experts"], "dense": ["all-linear"], "untied": ["q_proj"]}


def real(cfg, lora):
    """The model of a run, with its numbers."""
    made = load_model(cfg)
    made = adapted(made, lora) if lora.rank else made
    return packed(made, cfg) if cfg.quantize != "none" else made


def kept_by(made, rows, length):
    """Bytes that autograd keeps of a real pass over padded rows."""
    own = {x.untyped_storage().data_ptr() for x in [*made.model.parameters(), *made.model.buffers()]}
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x
        return x

    made.model.eval()
    place = torch.arange(length).expand(rows, -1)  # as a policy reads padded rows
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        made.hidden(input_ids=torch.randint(2, 15, (rows, length)), position_ids=place)
    return sum(x.untyped_storage().nbytes() for pointer, x in kept.items() if pointer not in own)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("rank", "given"),
    [(0, {}), (0, {"autocast": "bfloat16"}), (0, {"dtype": "bfloat16"}), (4, {}), (4, {"autocast": "bfloat16"}),
     (4, {"dtype": "bfloat16"}), (4, {"quantize": "nf4"}), (4, {"quantize": "int8", "autocast": "bfloat16"})],
    ids=lambda given: " ".join(given.values()) if isinstance(given, dict) else str(given),
)  # fmt: skip
def test_it_holds_and_keeps_what_a_real_model_does(tmp_path, size, rank, given):
    model(**SIZES[size]).save(tmp_path)
    cfg = ModelConfig(path=str(tmp_path), device="cpu", **given)
    lora = LoraConfig(rank=rank, targets=ADAPTERS[size] if rank else ["all-linear"])
    length = 600 if (rank, given) == (4, {}) else 48
    held, kept = measure(cfg, lora, length)
    made = real(cfg, lora)
    own = {x.data_ptr(): x for x in [*made.model.parameters(), *made.model.buffers()] if x.numel()}
    assert held.weights == pytest.approx(sum(x.numel() * x.element_size() for x in own.values()), rel=2e-4)
    assert sorted(held.trained) == sorted(p.numel() for p in made.model.parameters() if p.requires_grad)
    assert held.width == (2 if given.get("dtype") and not rank else 4)
    assert kept is not None
    for rows in (1, 7):  # neither was tried
        assert kept.fixed + rows * length * kept.each == pytest.approx(kept_by(made, rows, length), rel=0.01)


FAMILIES = {
    "llama": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4},
    "gemma3_text": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16},
    "gpt_oss": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16, "num_local_experts": 4},
    "mixtral": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2},
    "qwen3_5_text": {"hidden_size": 64, "intermediate_size": 96},
    "deepseek_v3": {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8,
                    "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "num_attention_heads": 4,
                    "num_key_value_heads": 4},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_are_measured_too(tmp_path, family):
    config = {"model_type": family, "vocab_size": 40, "num_hidden_layers": 2, "pad_token_id": 0} | FAMILIES[family]
    (tmp_path / "config.json").write_text(json.dumps(config))
    held, kept = measure(ModelConfig(path=str(tmp_path), device="cpu"), LoraConfig(), 32)
    assert held.weights >= 4 * sum(held.trained) > 0
    assert kept is not None and kept.each > 2 * 4 * 64 and kept.fixed < kept.each


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_is_the_one_that_is_asked_for(tmp_path, attention):
    model(**SIZES["dense"]).save(tmp_path)
    cfg = ModelConfig(path=str(tmp_path), device="cpu", attention=attention)
    _, kept = measure(cfg, LoraConfig(), 300)
    assert kept.fixed + 600 * kept.each == pytest.approx(kept_by(load_model(cfg), 2, 300), rel=0.01)


def test_the_largest_layer_is_what_checkpointing_makes_again(tmp_path):
    config = {"model_type": "deepseek_v3", "vocab_size": 40, "pad_token_id": 0} | FAMILIES["deepseek_v3"]
    found = []
    for layers, wide in ((2, 1), (2, 0), (4, 1)):  # layers, and how many of them are wide and dense
        sizes = {"num_hidden_layers": layers, "first_k_dense_replace": wide, "intermediate_size": 2000}
        (tmp_path / "config.json").write_text(json.dumps(config | sizes))
        found.append(measure(ModelConfig(path=str(tmp_path), device="cpu"), LoraConfig(), 32)[1].layer)
    assert found[0] == pytest.approx(found[2]) and found[0] > 1.5 * found[1]
