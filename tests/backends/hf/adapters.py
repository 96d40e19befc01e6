"""Models with adapters that are not zero, and what they compute; on tiny models of the families of test_routing.py."""

import torch

from gspo.backends.hf.lora import adapted
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import LoraConfig
from gspo.learner import layout
from gspo.types import Completion
from tests.backends.hf.test_routing import tiny as of_family
from tests.tiny_run import model

IDS = torch.arange(6)[None] + 2
WITH_EXPERTS = ["all-linear", "experts"]
LIKE_QWEN = ("qwen3_moe", "olmoe", "mixtral", "granitemoe", "deepseek_v3")
OTHERS = ("gpt_oss", "llama4_text")  # their experts are stacked otherwise, or have biases


def tiny(family):
    config = of_family(family).config.to_diff_dict()
    for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id"):
        config.pop(name, None)
    return build_tiny(config, model().tokenizer)


def with_adapters(base, rank=2, **options):
    made, g = adapted(base, LoraConfig(rank=rank, **{"targets": WITH_EXPERTS} | options)), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, p in made.model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=g))
    return made


def trained(made):
    return {name: p for name, p in made.model.named_parameters() if p.requires_grad}


def logits(scorer):
    return scorer.logits(scorer.hidden(input_ids=IDS))


def distance(x, right):
    """As a share of what is right. (The largest number alone is another from processor to processor.)"""
    return float((x - right).norm() / right.norm())


def gradients(made):
    """Of the sum of the log-probabilities of every second token."""
    completions = [Completion(IDS[0], torch.tensor([False, True] * 3), torch.zeros(3), torch.zeros(3), 1.0)]
    made.model.zero_grad()
    HFPolicy(made).forward(layout.build(completions)).logp.sum().backward()
    return {name: p.grad.clone() for name, p in trained(made).items()}
