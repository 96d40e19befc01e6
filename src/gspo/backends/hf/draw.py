"""Draws a token from logits, with its log-probability."""

from __future__ import annotations

import torch
from torch import Tensor

from gspo.types import Sampling


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
    last: int | Tensor = size - 1
    if 0 < sampling.top_k < size or sampling.top_p < 1:
        logits, ids = logits.topk(min(sampling.top_k or size, size))  # likeliest first
        last = logits.shape[-1] - 1
        if sampling.top_p < 1:
            probs = logits.softmax(-1)
            out = probs.cumsum(-1) - probs >= sampling.top_p
            out[:, 0] = False  # keep the likeliest token for any top_p
            logits = logits.masked_fill(out, -torch.inf)
            last = last - out.sum(-1, keepdim=True)
    logp = logits.log_softmax(-1)
    cdf = logp.exp().cumsum(-1)
    at = torch.searchsorted(cdf, uniforms[:, None] * cdf[:, -1:], right=True)
    at = at.clamp(max=last)  # rounding may overshoot the last token
    return (at if ids is None else ids.gather(-1, at))[:, 0], logp.gather(-1, at)[:, 0]
