"""Tiny sequence classifiers on the disk."""

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from gspo.backends.hf.tiny import longest_match_tokenizer
from gspo.rewards.reward_model import RewardModel
from tests.data.tools import TEMPLATE

PIECES = [*"0123456789+=? []:;!", *"abcdefghijklmnopqrstuvwxyz"]


def saved(folder, labels=1, template=TEMPLATE, pad=True, kind="qwen3", **config):
    """A classifier whose head is trained on nothing, saved as a whole."""
    tokenizer = longest_match_tokenizer(PIECES)
    tokenizer.chat_template = template
    if not pad:
        tokenizer.pad_token = None
    small = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": 64, "num_labels": labels, "pad_token_id": tokenizer.pad_token_id,
        "vocab_size": len(tokenizer),
    }  # fmt: skip
    if kind == "qwen3":
        small |= {"num_key_value_heads": 1, "head_dim": 16, "eos_token_id": 1}
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(kind, **small | config))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))  # far from a score of zero for everything
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


REPLIES = ["a", "abcabcabc", "7", "zz top", "a" * 30, "", "b7"]


def reward_model(folder, device="cpu", **fields):
    return RewardModel(path=str(folder), device=device, **fields)


def scores(model, completions=REPLIES, prompt="why?"):
    return model([prompt] * len(completions), completions)
