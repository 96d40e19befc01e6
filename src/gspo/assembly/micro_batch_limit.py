"""Remembers micro-batches that ran out of memory, in a file of the run folder, for restarts and resumed runs."""

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
    """Records the out-of-memory error that ends this process."""
    found = conditions(config, ranks) | {"tokens": error.tokens, "why": str(error)}
    folder = Path(config.log.dir)
    with suppress(OSError):  # another rank is writing it, or nobody can: then the next start fails likewise
        folder.mkdir(parents=True, exist_ok=True)  # checking an engine reads weights before the run folder exists
        replace_file(folder / SMALLER, json.dumps(found).encode())


def conditions(config: Config, ranks: Ranks) -> dict[str, int]:
    """The conditions under which the file applies: with other settings or ranks, memory may suffice."""
    scale = config.scale
    return {
        "asked": config.train.micro_batch_tokens, "ranks": ranks.size, "experts": scale.experts, "replicas": scale.replicas
    }  # fmt: skip


def make_smaller(micro_batches: MicroBatches, config: Config, ranks: Ranks) -> None:
    """Applies the limit (and its reason) that an earlier start of this run recorded, and records one found by this start."""
    micro_batches.keep = partial(keep, config, ranks)
    try:
        found = json.loads((Path(config.log.dir) / SMALLER).read_bytes())
        if all(found[key] == value for key, value in conditions(config, ranks).items()):
            micro_batches.max_tokens = min(micro_batches.max_tokens, max(1, int(found["tokens"])))
            micro_batches.smaller = str(found["why"])
    except (OSError, ValueError, KeyError, TypeError):  # no file, or one that was edited
        return
