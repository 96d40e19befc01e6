"""The prompts of a run: from its task, its stages and its refreshes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo.assembly.models import room
from gspo.backends.hf.files import Outline
from gspo.config.answer_format import default_system
from gspo.config.import_function import describe
from gspo.config.schema import Config
from gspo.data.chat_template import Encoder
from gspo.data.decontamination import Overlap
from gspo.data.loaders import Table, table
from gspo.data.prompts import other_prompts
from gspo.data.refresh import Pool
from gspo.data.splits import of_stage, refresh_function
from gspo.interfaces import RefreshFailed
from gspo.rollout.stages import TASK, Curriculum, stage_name
from gspo.types import Prompt


@dataclass
class OtherSources:
    """Builds the prompt pools of all sources other than task.source."""

    config: Config
    outline: Outline
    overlap: Overlap  # for decontamination
    held_out: Sequence[Prompt]
    check: Callable[[Iterable[Prompt]], None]  # raises ValueError for prompts that the rewards cannot score
    tables: Mapping[int, Table] = field(default_factory=dict)  # the rows of stages, by stage number

    def of_stage(self, number: int) -> Pool:
        """The pool of a stage with its own source. Raises ValueError for rows that cannot be used."""
        stage = self.config.stage[number]
        return self._pool(stage_name(stage.at), self.tables[number], stage.source or "")

    def of_rows(self, name: str, rows: list[dict[str, Any]]) -> Pool:
        """The pool of rows that refresh.source returned."""
        source = self.config.refresh.source or ""
        return dataclasses.replace(self._pool(name, table(rows, source), source), rows=rows)

    def made(self, name: str, step: int) -> Pool:
        """Calls refresh.source after `step` steps and makes a pool of its rows. Raises RefreshFailed."""
        source = self.config.refresh.source or ""
        where = f"refresh.source = {source!r}"
        function = refresh_function(source, step)
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
        task = of_stage(config.task, source)
        encoder = Encoder(self.outline.tokenizer, task, default_system(config))
        limit = room(config, self.outline.context_length)
        prompts = other_prompts(name, task, rows, encoder, limit, self.held_out, self.overlap)
        self.check(prompts)
        return Pool(name, prompts, task.seed)


def curriculum(config: Config, prompts: Sequence[Prompt], others: OtherSources) -> Curriculum:
    """The prompts of a run; `prompts` are those of task.source. Raises ValueError for a source without usable prompts."""
    pools = [Pool(TASK, prompts, config.task.seed)]
    pools += [others.of_stage(number) for number, stage in enumerate(config.stage) if stage.source is not None]
    refresh = config.refresh
    for pool in pools:
        if len(pool.queries) < (refresh.keep or 0):
            raise ValueError(f"refresh.keep = {refresh.keep}: {pool.name} has only {len(pool.queries)} queries: lower it")
    if refresh.every and refresh.source is not None:
        try:
            others.made("trial", refresh.every)  # trial call: errors surface before sampling
        except RefreshFailed as error:
            raise ValueError(str(error)) from error
    make = others.made if refresh.source is not None else None
    rules = config.rollout, config.stage, refresh, config.reward.correct_threshold
    return Curriculum(pools, *rules, make, others.of_rows)
