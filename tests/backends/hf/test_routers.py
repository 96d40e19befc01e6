"""Routers of every mixture of experts that the installed transformers has."""

import inspect
import math
import re
import sys

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from gspo.backends.hf import routing
from gspo.backends.hf.routers import answer, no_routers, routers, unknown_experts

# Whose routing is not seen, each with its experts; a user is told. Every other family is recorded and replayed.
UNSEEN = {"dbrx": "DbrxExperts", "doge": "DogeCDMoE", "zaya": "ZayaSparseMoeBlock"}
NO_TOP_K = {"phimoe"}
# Their code speaks of experts, and no model of theirs has any.
DENSE = {"bamba"}
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 40,
    "intermediate_size": 48, "moe_intermediate_size": 16, "max_position_embeddings": 64, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "num_experts": 8, "num_local_experts": 8,
    "n_routed_experts": 8, "moe_num_experts": 8, "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2,
    "moe_k": 2, "top_k_experts": 2, "n_shared_experts": 1, "shared_expert_intermediate_size": 16, "n_group": 1,
    "topk_group": 1, "num_expert_group": 1, "first_k_dense_replace": 0, "num_dense_layers": 0,
    "moe_layer_start_index": 0, "moe_layer_end_index": 1, "enable_moe_block": True, "is_moe": True,
    "mlp_only_layers": [], "mlp_layer_types": ["sparse", "sparse"], "q_lora_rank": 16, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_channels": 8, "expert_ffn_hidden_size": 16,
    "ffn_hidden_size": 32, "num_layers": 2, "intermediate_size_mlp": 32, "hidden_size_per_layer_input": 0,
    "initializer_range": 0.3, "rms_norm_eps": 1e-05,
}  # fmt: skip
SHAPE |= {  # of layers that are none of attention
    "linear_num_heads": 4, "linear_head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8,
    "n_groups": 1, "chunk_size": 16,
}  # fmt: skip
_FULL = {"layer_types": ["full_attention", "full_attention"]}
OF_ITS_OWN = {
    "deepseek_v4": {"mlp_layer_types": ["hash_moe", "moe"]},
    "lfm2_moe": _FULL,
    "granitemoehybrid": _FULL | {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8},
    "dbrx": {
        "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4},
        "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 16, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "mimo_v2_flash": {"num_key_value_heads": 2, "head_dim": 24},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
TOKENS = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))


def families():
    """Model types, of text alone, with a causal language model whose code or settings speak of experts."""
    found = set()
    for config, model in MODEL_FOR_CAUSAL_LM_MAPPING.items():
        for kind in model if isinstance(model, (tuple, list)) else (model,):
            source = inspect.getsource(sys.modules[kind.__module__]) + inspect.getsource(sys.modules[config.__module__])
            if re.search("expert", source, re.IGNORECASE):
                found.add(config().get_text_config().model_type)
    return found


def config_of(family, **changes):
    """Of a tiny model of a family, with experts in its last layer at least."""
    kind = CONFIG_MAPPING[family]
    there = {name: value for name, value in SHAPE.items() if name in kind().to_dict()}
    return kind(**there | OF_ITS_OWN.get(family, {}) | changes)


def built(family):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config_of(family)).eval()


def logits(model):
    return model(input_ids=TOKENS, use_cache=False).logits


@torch.no_grad()
def check_replay(model):
    """Its own choice changes no bit, and experts that it would not choose are used."""
    plain = logits(model)
    with routing.record(model, entropy=True) as record:
        logits(model)
        own, entropy = record.take(), record.take("entropy")
    assert own.shape[:2] == entropy.shape == (len(routers(model)), 18) and record.experts >= 8
    assert own.min() >= 0 and own.max() < record.experts and 0 < entropy.mean() < math.log(record.experts)
    assert (own.sort(-1).values.diff(dim=-1) > 0).all()  # a token's experts are distinct
    with routing.Replay(model, own) as replay:
        assert torch.equal(logits(model), plain) and torch.equal(replay.own(), own)
    draw = torch.Generator().manual_seed(1)
    other = torch.rand(*own.shape[:2], 8, generator=draw).argsort(-1)[..., : own.shape[2]].short()
    with routing.record(model) as record, routing.Replay(model, other):
        assert not torch.equal(logits(model), plain)
        assert torch.equal(record.take().sort(-1).values, other.sort(-1).values)


def test_no_mixture_of_transformers_is_taken_for_a_dense_model():
    """A family that a new transformers brings is replayed, or must be named here."""
    transformers.logging.set_verbosity_error()
    names = families()
    assert len(names) > 45 and UNSEEN.keys() | NO_TOP_K | DENSE <= names
    for name in sorted(names - DENSE):
        model = built(name)
        try:
            assert unknown_experts(model) == UNSEEN.get(name, "")
            if name in UNSEEN:
                assert "mixture of experts whose routing gspo does not see" in no_routers(model)
                with pytest.raises(ValueError, match=r"does not see.*no routing to replay"):
                    routing.check(model, lambda: None)
            elif name in NO_TOP_K:
                with pytest.raises(ValueError, match="without a top-k"):
                    check_replay(model)
            else:
                check_replay(model)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


def test_a_dense_layer_among_sparse_ones_is_no_unseen_one_and_a_router_in_remote_code_is():
    model = built("qwen3_moe")
    assert unknown_experts(model) == "" and len(routers(model)) == 2
    gates = [layer.mlp.gate for layer in model.model.layers]
    gates[0].__class__ = type("OwnRouter", (type(gates[0]),), {})  # a subclass answers as its family does
    assert routers(model) == gates
    block = model.model.layers[1].mlp
    block.gate.__class__ = type("Qwen3MoeTopKRouter", (torch.nn.Module,), {})  # of no module of transformers
    assert len(routers(model)) == 1
    assert unknown_experts(model) == "Qwen3MoeSparseMoeBlock"


def test_the_logits_behind_probabilities_give_the_same_softmax():
    """Gemma 4 returns probabilities where others return logits."""
    model = built("gemma4_text")
    router, x = routers(model)[0], torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        outputs = router(x)
        raw, chosen = answer(router, outputs)
    torch.testing.assert_close(raw.softmax(-1), outputs[0])
    assert torch.equal(chosen, outputs[2])
