"""The models that updates are measured on: dense ones and mixtures of experts with random weights, and a pretrained one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import chain
import torch
from transformers import Qwen3MoeForCausalLM

from gspo.backends.hf.load import load_model, wrap_model
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import ModelConfig
from gspo.demo import smollm2

CONTEXT = 4096
CPU = ModelConfig(device="cpu")
# What both large models share, as Qwen3 0.6B has it.
LARGE: dict[str, Any] = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
LARGE |= {"vocab_size": 151_936, "tie_word_embeddings": True, "max_position_embeddings": 40_960}


def dense(cfg: ModelConfig = CPU) -> HFModel:
    """A Qwen3 of the same width and depth as the mixture."""
    shape = {"model_type": "qwen3", "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512, "tie_word_embeddings": True}
    return build_tiny({**shape, "max_position_embeddings": CONTEXT}, chain.make_tokenizer(), cfg=cfg)


def mixture(cfg: ModelConfig = CPU, experts: int = 16) -> HFModel:
    """The chain model, with a longer context."""
    tokenizer = chain.make_tokenizer()
    config = chain.make_config(tokenizer)
    config.num_experts, config.max_position_embeddings = experts, CONTEXT
    torch.manual_seed(0)
    return wrap_model(Qwen3MoeForCausalLM(config), tokenizer, cfg)


def large_dense(cfg: ModelConfig) -> HFModel:
    """Qwen3 0.6B's shape: 0.6 B parameters, 28 layers."""
    shape = {"model_type": "qwen3", "num_hidden_layers": 28, "intermediate_size": 3072}
    return build_tiny(LARGE | shape, chain.make_tokenizer(), cfg=cfg)


def large_mixture(cfg: ModelConfig) -> HFModel:
    """1.1 B parameters: 16 layers of 64 experts, of which a token visits 8."""
    shape = {"model_type": "qwen3_moe", "num_hidden_layers": 16, "num_experts": 64, "num_experts_per_tok": 8}
    shape |= {"moe_intermediate_size": 256, "intermediate_size": 3072, "norm_topk_prob": True}
    return build_tiny(LARGE | shape, chain.make_tokenizer(), cfg=cfg)


def pretrained(cfg: ModelConfig = CPU) -> HFModel:
    """SmolLM2-135M-Instruct, 30 layers of width 576."""
    return load_model(dataclasses.replace(cfg, path=str(smollm2.fetch_smollm2())))


MODELS: dict[str, dict[str, Callable[[ModelConfig], HFModel]]] = {
    "3m": {"dense": dense, "mixture": mixture},
    "0.6b": {"dense": large_dense, "mixture": large_mixture},
    "smollm2": {"dense": pretrained},
}
