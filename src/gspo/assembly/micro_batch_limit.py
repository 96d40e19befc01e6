"""Remembers micro-batches that ran out of memory, in a file of the run folder, for restarts and resumed runs."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path

from gspo.config.schema import Config
from gspo.distributed.ranks import Ranks
from gspo.learner.memory import MicroBatches, OutOfMemory
from gspo.runs.folder import SMALLER
from gspo.safe import replace_file

logger = logging.getLogger(__name__)
UNTIL = "train.micro_batch_tokens, the number of ranks, scale.expert_parallel or scale.data_parallel_replicas"
"""`conditions`, in words."""


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
        "asked": config.train.micro_batch_tokens, "ranks": ranks.size, "experts": scale.expert_parallel,
        "replicas": scale.data_parallel_replicas,
    }  # fmt: skip


def micro_batches_of(config: Config, ranks: Ranks | None) -> MicroBatches:
    """The micro-batches of a run. Several ranks keep to a limit that an earlier start has recorded, and record their own."""
    asked = config.train.micro_batch_tokens
    if ranks is None:
        return MicroBatches(asked, logger.warning)
    warn = logger.warning if ranks.number == 0 else lambda text: None
    made = MicroBatches(asked, warn, ranks, partial(keep, config, ranks))
    file = Path(config.log.dir) / SMALLER
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):  # none, or a damaged one
        found = {}
    if conditions(config, ranks).items() <= found.items():
        made.max_tokens = min(asked, found["tokens"])
        warn(f"{found['why']}: micro-batches have at most {found['tokens']} tokens, until {UNTIL} changes")
    return made
