"""Draws a token from logits, with its log-probability."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo.types import Sampling

BLOCK = 256  # tokens in a block of the vocabulary


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draws one token per row by inverse CDF: logits [B, V], uniforms [B] in [0, 1) -> ids [B], log-probabilities [B].

    As usual, temperature comes first, then top-k, then top-p (the likeliest tokens whose probabilities sum up to it).
    """
    if sampling.temperature == 0:
        best, at = logits.max(-1)
        return at, best * 0  # nan where the logits are not finite
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    ids: Tensor | None = None
    size = logits.shape[-1]
    if 0 < sampling.top_k < size or sampling.top_p < 1:
        logits, ids = logits.topk(min(sampling.top_k or size, size))  # likeliest first
        if sampling.top_p < 1:
            probs = logits.softmax(-1)
            out = probs.cumsum(-1) - probs >= sampling.top_p
            out[:, 0] = False  # keep the likeliest token for any top_p
            logits = logits.masked_fill(out, -torch.inf)
    at, logp = _draw(logits, uniforms[:, None])
    return (at if ids is None else ids.gather(-1, at))[:, 0], logp[:, 0]


def _draw(logits: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Positions [B, 1] and their log-probabilities [B, 1], of logits [B, V] and uniforms [B, 1]. The CDF is inverted over
    blocks first, then within one block, since a CPU is slow at running sums over a whole vocabulary.
    """
    count, size = logits.shape
    top = logits.amax(-1, keepdim=True)
    e = logits.new_empty(count, -(-size // BLOCK) * BLOCK)
    e[:, size:] = 0
    torch.sub(logits, top, out=e[:, :size]).exp_()
    blocks = e.view(count, -1, BLOCK)
    sums = blocks.sum(-1)
    total = sums.sum(-1, keepdim=True)
    block, place = _invert(sums, uniforms * total)
    within, _ = _invert(blocks[torch.arange(count, device=e.device), block[:, 0]], place)
    at = (block * BLOCK + within).clamp(max=size - 1)  # it is beyond the vocabulary only where the logits are not finite
    return at, logits.gather(-1, at) - top - total.log()


def _invert(weights: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """The first position [B, 1] at which the running sum of weights [B, N] exceeds `goal` [B, 1], and the goal minus the
    sum before it. The goal is clamped, so that rounding never leads to a weight of 0.
    """
    cdf = weights.cumsum(-1)
    goal = goal.clamp(min=0).minimum(cdf[:, -1:] * (1 - torch.finfo(cdf.dtype).eps))
    at = torch.searchsorted(cdf, goal, right=True).clamp(max=weights.shape[1] - 1)
    return at, goal - (cdf.gather(-1, at) - weights.gather(-1, at))
