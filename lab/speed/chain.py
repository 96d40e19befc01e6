"""The "chain" task and the small mixture of experts that the benchmarks share. Imports torch and transformers only.

An item is six operations in a row, worked from left to right mod 100, one written step each:

    47+18*3-60+96*7-25 mod 100?   ->   47+18=65;65*3=95;95-60=35;35+96=31;31*7=17;17-25=92;so 92
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

OPERATIONS = 6
MODULUS = 100
COMPLETION_TOKENS = 57  # mean length of a worked solution with its <eos> (56.6)
PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
# Digits, the signs and letters of the task, and a few more: 34 entries with the special ones.
ALPHABET = "0123456789+-*=;?, adehimnorstuw"


@dataclass(frozen=True)
class Item:
    """A question, its worked solution (without the end token) and the number asked for."""

    prompt: str
    completion: str
    answer: int


def make_item(seed: int) -> Item:
    """The item of `seed`: the same seed gives the same item."""
    rng = random.Random(f"chain {seed}")
    value = rng.randrange(MODULUS)
    expression, steps = str(value), []
    for _ in range(OPERATIONS):
        sign = rng.choice("+-*")
        operand = rng.randrange(2, 10) if sign == "*" else rng.randrange(10, 100)
        after = {"+": value + operand, "-": value - operand, "*": value * operand}[sign] % MODULUS
        steps.append(f"{value}{sign}{operand}={after}")
        expression += f"{sign}{operand}"
        value = after
    return Item(f"{expression} mod {MODULUS}?", f"{';'.join(steps)};so {value}", value)


def make_items(n: int, seed: int = 0, examples: int = 0) -> list[Item]:
    """`n` items with different prompts. Seeds a million apart share no item's seed. examples: so many others, worked, stand
    before each question, some 81 tokens each.
    """
    items: dict[str, Item] = {}
    index = seed * 1_000_000
    while len(items) < n:
        item = make_item(index)
        items.setdefault(item.prompt, item)
        index += 1
    if not examples:
        return list(items.values())
    worked = [f"{item.prompt}{item.completion} " for item in make_items(n + examples, seed + 1)]
    shown = ("".join(worked[i : i + examples]) for i in range(n))
    return [replace(item, prompt=text + item.prompt) for text, item in zip(shown, items.values())]


def score(completion: str, answer: int) -> float:
    """1 when the completion ends by `so` and the right number, else 0."""
    match = re.search(r"so (\d{1,2})$", completion.removesuffix(EOS).strip())
    return float(match is not None and int(match[1]) == answer)


def digit_share(completion: str) -> float:
    """The share of digits among the characters, 0 to 1: a reward that differs between any two untrained completions.

    The timing benchmark needs it. With `score` an untrained model gets only zeros, so every advantage is zero and a
    program that skips such work would be timed doing nothing.
    """
    return sum(character.isdigit() for character in completion) / max(1, len(completion))


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character: 34 entries."""
    vocabulary = {name: i for i, name in enumerate([PAD, EOS, UNK, *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, unk_token=UNK, padding_side="left"
    )


def make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3MoeConfig:
    """Qwen3-MoE of 3.4 M parameters: 4 layers of 16 experts, of which a token visits 2."""
    return Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,  # of the dense layers, of which there are none
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=16,
        num_experts_per_tok=2,
        moe_intermediate_size=128,
        norm_topk_prob=True,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Qwen3MoeForCausalLM:
    """The model with random weights, float32."""
    torch.manual_seed(seed)
    return Qwen3MoeForCausalLM._from_config(make_config(tokenizer), experts_implementation="grouped_mm")


def random_groups(prompt: int, completion: int, group: int, prompts: int) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
    """Prompts of `prompt` random tokens, each with `group` completions of `completion` tokens: always the same ones."""
    draw = torch.Generator().manual_seed(0)
    return [
        (torch.randint(3, 30, (prompt,), generator=draw), list(torch.randint(3, 30, (group, completion), generator=draw)))
        for _ in range(prompts)
    ]


def write_model(folder: str | Path, seed: int = 0) -> Path:
    """Write model and tokenizer in Hugging Face format to `folder`, and return it."""
    tokenizer = make_tokenizer()
    make_model(tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def gradients(model: torch.nn.Module) -> list[float]:
    """Each weight's gradient, projected on a fixed direction: equal for equal gradients, signs included."""
    return [float(p.grad.double().flatten() @ torch.arange(p.numel()).double().cos())
            for p in model.parameters() if p.grad is not None]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the chain model with random weights, and show some items.")
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(write_model(options.folder, options.seed))
    for shown in make_items(3, options.seed):
        print(shown.prompt, "->", shown.completion)
