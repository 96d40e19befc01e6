"""Marks of tokens, set once a step before its first update, from all tokens that the updates read, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gspo.distributed.ranks import Ranks
from gspo.learner.objective import PolicyObjective
from gspo.objective.corrections import covariant, least_entropy
from gspo.types import Completion, Reading


def of_entropy(
    completions: Sequence[Completion], here: Mapping[int, Reading], share: float, ranks: Ranks
) -> list[Completion]:
    """Marks all tokens but the `share` of highest entropy. here: this rank's readings, by index of the completion."""
    entropy = {i: reading.entropy for i, reading in here.items() if reading.entropy is not None}
    parts = ranks.to_leader({"all": torch.cat([torch.zeros(0), *entropy.values()])})
    every = [part["all"] for part in parts]
    least = ranks.gathered(least_entropy(torch.cat(every), share) if every else 0.0)[0]
    return [replace(c, marked=entropy[i] < least) if i in entropy else c for i, c in enumerate(completions)]


def of_covariance(
    completions: Sequence[Completion], mine: Sequence[int], objective: PolicyObjective, ranks: Ranks, seed: Sequence[int]
) -> list[Completion]:
    """Marks the tokens of Clip-Cov or KL-Cov, on every rank, by pi_old's log-probabilities; the paper takes those of the
    current policy. mine: indices of the completions that this rank reads. seed: of Clip-Cov's draw.
    """
    parts = ranks.to_leader({i: torch.stack(_logp_and_A(completions[i], objective.teacher_weight)) for i in mine})
    lengths, chosen = [len(c.logp_old) for c in completions], torch.zeros(0, dtype=torch.int64)
    if ranks.number == 0:
        every = {i: x for part in parts for i, x in part.items()}
        logp, A = torch.cat([every[i] for i in range(len(completions))], 1)
        draw = torch.from_numpy(np.random.default_rng(seed).random(sum(lengths))) if objective.clip_cov else None
        chosen = covariant(logp, A, objective.clip_cov or objective.kl_cov, draw)
    marked = torch.zeros(sum(lengths), dtype=torch.bool)
    marked[ranks.gathered(chosen)[0]] = True
    return [replace(c, marked=mark) for c, mark in zip(completions, marked.split(lengths))]


def _logp_and_A(c: Completion, teacher_weight: float) -> tuple[Tensor, Tensor]:
    """log pi_old and A, the teacher's part included, of each token [|y|], float64."""
    logp = c.logp_old.double()
    A = torch.as_tensor(c.advantage, dtype=torch.float64).expand_as(logp)
    return logp, A if c.logp_teacher is None else A + teacher_weight * (c.logp_teacher - logp)
