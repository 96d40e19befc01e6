"""Tiny models of many architectures, shared by the tests of the backends."""

import string

import torch

from gspo.backends.hf.model import HFModel
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.types import Prompt

PIECES = [*string.ascii_lowercase, *string.digits, " ", "\n", ".", "<", ">", "/", "even", "odd", "ab", "abc"]
TOKENIZER = longest_match_tokenizer(PIECES)

_SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip
_GEMMA = {"head_dim": 8, "sliding_window": 8, "final_logit_softcapping": 3.0}
_LAYERS = ["sliding_attention", "full_attention"]
FAMILIES = {
    "qwen3_moe": tiny_qwen3_moe(hidden=32, experts=4, expert_width=16, context=256, initializer_range=0.2),
    "qwen3": {"model_type": "qwen3", "head_dim": 8, **_SHAPE},
    "llama": {"model_type": "llama", **_SHAPE},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "router_jitter_noise": 0.3, **_SHAPE},
    "olmoe": {"model_type": "olmoe", "num_experts": 4, "num_experts_per_tok": 2, **_SHAPE},
    "cohere": {"model_type": "cohere", "logit_scale": 0.25, **_SHAPE},
    "granite": {"model_type": "granite", "logits_scaling": 8.0, **_SHAPE},
    "gemma2": {"model_type": "gemma2", **_GEMMA, **_SHAPE},
    "gemma3": {"model_type": "gemma3_text", "layer_types": _LAYERS, **_GEMMA, **_SHAPE},
    "bloom": {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2},
    "mamba": {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.2},
}  # fmt: skip
FULL_ATTENTION = {"qwen3_moe", "qwen3", "llama", "gpt2", "mixtral", "olmoe", "cohere", "granite"}


def tiny(family: str, seed: int = 0) -> HFModel:
    return build_tiny(FAMILIES[family], TOKENIZER, seed)


def prompts(*lengths: int) -> list[Prompt]:
    """Prompts of random letters, of these many tokens."""
    draw = torch.Generator().manual_seed(len(lengths))
    rows = [torch.randint(2, 28, (length,), generator=draw).tolist() for length in lengths]
    return [Prompt(id=f"p{i}", messages="", tokens=tuple(ids)) for i, ids in enumerate(rows)]
