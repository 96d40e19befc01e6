"""The queries of a run: those of its task, of its stages, and those that a refresh asks for."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gspo.backends.hf.files import Outline
from gspo.build.models import room
from gspo.config.answers import default_system
from gspo.config.lookup import describe, load_function, unknown_arguments
from gspo.config.schema import Config
from gspo.data.chat_template import Encoder
from gspo.data.overlap import Overlap
from gspo.data.prompts import other_prompts
from gspo.data.reasoning_gym import PREFIX
from gspo.data.refresh import Pool
from gspo.data.sources import Table, generate, read, table
from gspo.data.tables import GENERATED
from gspo.ports import RefreshFailed
from gspo.rollout.stages import TASK, Curriculum, stage_name
from gspo.types import Prompt


@dataclass
class OtherSources:
    """Makes the pools of other sources than task.source. overlap: what benchmarks know. check: raises ValueError for prompts
    that the rewards cannot score.
    """

    config: Config
    outline: Outline
    overlap: Overlap
    held_out: Sequence[Prompt]
    check: Callable[[Iterable[Prompt]], None]

    def of_source(self, name: str, source: str, key: str) -> Pool:
        """The pool of a stage's source. Raises ValueError that names the key."""
        task = dataclasses.replace(self.config.task, source=source, eval_source=None, eval_split=None, config={})
        if source.startswith(PREFIX):
            rows = generate(source, task, task.size or GENERATED, 0)[0]
        else:
            rows = read(source, task, task.split, key)
        return self._pool(name, rows, source)

    def of_rows(self, name: str, rows: list[dict[str, Any]]) -> Pool:
        """The pool of rows that refresh.source gave."""
        source = self.config.refresh.source or ""
        return dataclasses.replace(self._pool(name, table(rows, source), source), rows=rows)

    def made(self, name: str, step: int) -> Pool:
        """The pool that refresh.source gives after `step` steps. Raises RefreshFailed."""
        source = self.config.refresh.source or ""
        where = f"refresh.source = {source!r}"
        function = load_function(source, "refresh.source")
        if problem := unknown_arguments(function, {"step": step}):
            raise RefreshFailed(f"{where}: cannot be called with step = {step}: {problem}")
        try:
            rows = json.loads(json.dumps(list(table(function(step=step), source).rows), allow_nan=False))
        except (Exception, SystemExit) as error:
            raise RefreshFailed(f"{where}: gave no rows after step {step}: {describe(error)}") from error
        try:
            return self.of_rows(name, rows)
        except ValueError as error:
            raise RefreshFailed(f"{where}, after step {step}: {error}") from error

    def _pool(self, name: str, rows: Table, source: str) -> Pool:
        config = self.config
        task = dataclasses.replace(config.task, source=source, config={})
        encoder = Encoder(self.outline.tokenizer, task, default_system(config))
        limit = room(config, self.outline.context_length)
        prompts = other_prompts(name, task, rows, encoder, limit, self.held_out, self.overlap)
        self.check(prompts)
        return Pool(name, prompts, task.seed)


def curriculum(config: Config, prompts: Sequence[Prompt], others: OtherSources) -> Curriculum:
    """Which prompts a run takes. prompts: of task.source. Raises ValueError, before anything is sampled, for a source of a
    stage or a refresh that gives none.
    """
    pools = [Pool(TASK, prompts, config.task.seed)]
    for number, stage in enumerate(config.stage):
        if stage.source is not None:
            pools.append(others.of_source(stage_name(stage.at), stage.source, f"stage[{number}].source"))
    refresh = config.refresh
    keep = refresh.keep or 0
    for pool in pools if keep else ():
        if len(pool.queries) < keep:
            raise ValueError(f"refresh.keep = {keep}: {pool.name} has only {len(pool.queries)} queries: lower it")
    if refresh.every and refresh.source is not None:
        try:
            others.made("trial", refresh.every)  # what is wrong with it shows before anything is sampled
        except RefreshFailed as error:
            raise ValueError(str(error)) from error
    make = others.made if refresh.source is not None else None
    rules = config.rollout, config.stage, refresh, config.reward.correct_at
    return Curriculum(pools, *rules, make, others.of_rows)
