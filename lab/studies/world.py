"""What the models of mechanism.py speak: text of a source that is known, of any length, and what it is worth.

A text begins with a topic. Each further symbol is drawn by the topic and the symbol before it: about one nat of entropy.
A symbol is worth +1 or -1, and a completion's reward is their mean: every group teaches, and the same thing.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.policy import ModelConfig

TOPICS, SYMBOLS = "ABCD", string.ascii_lowercase
EVEN = 0.05  # of the Dirichlet distribution of each row: lower is more predictable
HIDDEN, HEADS, CONTEXT, ACTIVE = 64, 4, 1040, 64  # ACTIVE: feed-forward weights a token passes, experts x width
BATCH, RATE, BALANCE = 4096, 3e-3, 0.01  # of the cold start; BATCH in tokens
LENGTHS = (32, 64, 128, 256, 512, 1024)  # of its texts


def settings() -> dict[str, Any]:
    """All constants of this file, as JSON has them: what a result depends on beside its point."""
    own = {name.lower(): value for name, value in globals().items() if name.isupper()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}


@cache
def source() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of each topic, how likely a symbol follows another [topics, symbols, symbols], and what each is worth [symbols]."""
    rng = np.random.default_rng(7)
    follows = rng.dirichlet(np.full(len(SYMBOLS), EVEN), (len(TOPICS), len(SYMBOLS)))
    return follows, rng.permutation(np.where(np.arange(len(SYMBOLS)) % 2, 1.0, -1.0))


def texts(count: int, length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Topic and symbols by number [count, length]."""
    sums = source()[0].cumsum(-1)
    made = np.empty((count, length), np.int64)
    made[:, 0], made[:, 1] = rng.integers(len(TOPICS), size=count), rng.integers(len(SYMBOLS), size=count)
    for at in range(2, length):
        drawn = rng.random((count, 1)) * (1 - 1e-9)
        made[:, at] = (drawn >= sums[made[:, 0], made[:, at - 1]]).sum(1).clip(max=len(SYMBOLS) - 1)
    return made


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Prompts: a topic and two symbols."""
    drawn = texts(count, 3, np.random.default_rng([1, seed]))
    return [{"prompt": TOPICS[t] + SYMBOLS[a] + SYMBOLS[b]} for t, a, b in drawn]


def worth(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """The mean of what a completion's symbols are worth; a topic's letter counts -1."""
    value = dict(zip(SYMBOLS, source()[1]))
    return [float(np.mean([value.get(letter, -1.0) for letter in text] or [-1.0])) for text in completions]


def outline(experts: int, per_token: int, layers: int) -> dict[str, Any]:
    """The architecture. experts = 0: dense, with as many feed-forward weights a token."""
    shape = tiny_qwen3_moe(
        hidden=HIDDEN, layers=layers, experts=experts or 1, top_k=per_token, expert_width=ACTIVE // per_token, heads=HEADS,
        kv_heads=HEADS // 2, context=CONTEXT, norm_topk_prob=per_token > 1,  # else the router would have no gradient
        router_aux_loss_coef=BALANCE,
    )  # fmt: skip
    if experts:
        return shape
    dense = {name: value for name, value in shape.items() if "expert" not in name and "topk" not in name}
    return dense | {"model_type": "qwen3", "intermediate_size": ACTIVE}


def cold_start(experts: int, per_token: int, layers: int, seed: int, steps: int) -> tuple[Any, Any, float]:
    """A model that has learned to speak, its tokenizer, and its last loss, nats a token. Its texts do not end."""
    tokenizer = longest_match_tokenizer([*TOPICS, *SYMBOLS])
    model = build_tiny(outline(experts, per_token, layers), tokenizer, seed, ModelConfig(device="cpu")).model
    first = tokenizer.convert_tokens_to_ids(TOPICS[0])
    rng = np.random.default_rng([2, seed])
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    loss = math.nan
    for step in range(steps):
        rate = min(1.0, (step + 1) / 20) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))
        for group in optimizer.param_groups:
            group["lr"] = RATE * rate
        length = LENGTHS[step % len(LENGTHS)]
        ids = torch.from_numpy(texts(BATCH // length, length, rng)) + first
        ids[:, 1:] += len(TOPICS)
        out = model(input_ids=ids, labels=ids, **({"output_router_logits": True} if experts else {}))
        optimizer.zero_grad()
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss = float(out.loss.detach()) - (BALANCE * float(out.aux_loss.detach()) if experts else 0.0)
    return model.eval(), tokenizer, loss
