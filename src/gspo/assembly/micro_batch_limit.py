"""Micro-batches that ranks had no memory for: a file in the run's folder tells its next lives, and resumptions, of it."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path

from gspo.config.schema import Config
from gspo.distributed.ranks import Ranks
from gspo.learner.memory import MicroBatches, OutOfMemory
from gspo.runs.folder import SMALLER
from gspo.safe import replace_file

UNTIL = "train.micro_batch_tokens, the number of ranks, scale.experts or scale.replicas"  # `conditions`, in words


def keep(config: Config, ranks: Ranks, error: OutOfMemory) -> None:
    """Writes down what ends this life."""
    found = conditions(config, ranks) | {"tokens": error.tokens, "why": str(error)}
    folder = Path(config.log.dir)
    with suppress(OSError):  # another rank is writing it, or nobody can: then the next life fails as this one
        folder.mkdir(parents=True, exist_ok=True)  # weights are read before a run begins, where an engine is proven
        replace_file(folder / SMALLER, json.dumps(found).encode())


def conditions(config: Config, ranks: Ranks) -> dict[str, int]:
    """What the file holds for: with other settings, or on other ranks, memory may suffice."""
    scale = config.scale
    return {
        "asked": config.train.micro_batch_tokens, "ranks": ranks.size, "experts": scale.experts, "replicas": scale.replicas
    }  # fmt: skip


def make_smaller(micro_batches: MicroBatches, config: Config, ranks: Ranks) -> None:
    """Gives micro-batches the size that an earlier life of this run has found, and the reason; and has what this one finds
    written down.
    """
    micro_batches.keep = partial(keep, config, ranks)
    try:
        found = json.loads((Path(config.log.dir) / SMALLER).read_bytes())
        if all(found[key] == value for key, value in conditions(config, ranks).items()):
            micro_batches.max_tokens = min(micro_batches.max_tokens, max(1, int(found["tokens"])))
            micro_batches.smaller = str(found["why"])
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or somebody has changed it
        return
