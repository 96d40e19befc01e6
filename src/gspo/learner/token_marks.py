"""Marks of tokens, set once a step before its first update, from all tokens that the updates read, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from gspo.distributed.ranks import Ranks
from gspo.objective.corrections import least_entropy
from gspo.types import Completion, Reading


def of_entropy(
    completions: Sequence[Completion], here: Mapping[int, Reading], share: float, ranks: Ranks
) -> list[Completion]:
    """Marks the `share` of the tokens with the highest entropies. here: this rank's readings, by index of the completion."""
    entropy = {i: reading.entropy for i, reading in here.items() if reading.entropy is not None}
    parts = ranks.to_leader({"all": torch.cat([torch.zeros(0), *entropy.values()])})
    every = [part["all"] for part in parts]
    least = ranks.gathered(least_entropy(torch.cat(every), share) if every else 0.0)[0]
    return [replace(c, uncertain=entropy[i] >= least) if i in entropy else c for i, c in enumerate(completions)]
