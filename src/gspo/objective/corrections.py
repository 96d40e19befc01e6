"""Corrections for the sampler-trainer mismatch: detached weights on the advantages, from r = pi_old/mu.

They are applied after s_i is computed from all sampled tokens, and change no ratio. A token-level algorithm has one weight
per token. A sequence-level one has one term per completion, so its weight comes from the geometric mean of r over the
completion, which unlike the product does not decay with length.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gspo.objective.completions import Completions
from gspo.objective.losses import level_ratio

CAP = 2.0  # tis, seq_mis
LOW, HIGH = 0.5, 5.0  # icepop


def tis(r: Tensor) -> Tensor:
    """Truncated importance sampling: min(r, C), C = 2."""
    return r.clamp(max=CAP)


def icepop(r: Tensor) -> Tensor:
    """IcePop: r within [0.5, 5], else 0."""
    return torch.where((r >= LOW) & (r <= HIGH), r, 0.0)


def seq_mis(r: Tensor) -> Tensor:
    """Masked importance sampling of whole completions: r up to C = 2, else 0. `r` is the completion's geometric mean."""
    return torch.where(r <= CAP, r, 0.0)


CORRECTIONS: dict[str, Callable[[Tensor], Tensor]] = {"tis": tis, "icepop": icepop, "seq_mis": seq_mis}


def weights(name: str, level: str, logp_old: Tensor, logp_mu: Tensor, y: Completions) -> Tensor:
    """Weights of the correction `name`, without gradient: [S] for sequence-level algorithms and seq_mis, else [N]."""
    level = "sequence" if name == "seq_mis" else level
    weight = CORRECTIONS[name](level_ratio(level, logp_old, logp_mu, y).detach())
    return y.turns().spread(weight) if level == "turn" else weight
