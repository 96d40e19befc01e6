"""Tiny models of real architectures with random weights, for the demo, the tests and the benchmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.model import HFModel
from gspo.config.policy import ModelConfig

PAD, EOS = "<pad>", "<eos>"


def longest_match_tokenizer(pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """A tokenizer that greedily matches the longest of `pieces` from left to right. Decoding restores the text. Ids: 0
    `<pad>`, 1 `<eos>`, then the pieces. Text that no piece matches is an error in the tokenizer: there is no unknown token.
    """
    vocabulary = {piece: i for i, piece in enumerate([PAD, EOS, *pieces])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    longest_first = sorted(pieces, key=len, reverse=True)
    pattern = Regex("|".join(re.escape(piece) for piece in longest_first))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def tiny_qwen3_moe(
    *,
    hidden: int = 96,
    layers: int = 2,
    experts: int = 8,
    top_k: int = 2,
    expert_width: int = 96,
    heads: int = 4,
    kv_heads: int = 2,
    context: int = 1024,
    **more: Any,
) -> dict[str, Any]:
    """Configuration of a small Qwen3-MoE with tied embeddings. It has 0.5 M parameters by default, and 3.4 M with hidden
    128, layers 4, experts 16, expert_width 128. `more` are further fields of the configuration.
    """
    return {
        "model_type": "qwen3_moe",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": expert_width,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "norm_topk_prob": True,
        "tie_word_embeddings": True,
        "max_position_embeddings": context,
        **more,
    }


def build_tiny(
    config: dict[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int = 0, cfg: ModelConfig | None = None
) -> HFModel:
    """Builds a model with random weights, by default on the CPU. `config`: fields of its configuration, with `model_type`;
    vocabulary size and special tokens come from the tokenizer.
    """
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    model_config = AutoConfig.for_model(**{"vocab_size": len(tokenizer), **ids, **config})
    cfg = cfg or ModelConfig(device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(model_config)
    for name, value in ids.items():
        setattr(model.generation_config, name, value)
    return wrap_model(model.to(None if cfg.device == "auto" else cfg.device), tokenizer, cfg)
