"""Finds training prompts that overlap with a benchmark: those that share 8 consecutive words with one of its prompts.

The rule is that of open-r1's decontamination (github.com/huggingface/open-r1, Apache 2.0). Prompts with fewer words are
compared as a whole.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo.config.files import from_home
from gspo.config.rollout import TaskConfig
from gspo.config.source_kind import BENCHMARK, SUFFIXES
from gspo.data.benchmarks.table import named
from gspo.data.columns import cell, value_in
from gspo.data.files import rows_of
from gspo.data.loaders import Table, read
from gspo.data.messages import check_messages, text_of

WORDS = 8
COLUMNS = ("prompt", "question", "problem", "question_content", "description")
"""Columns that may hold a benchmark's prompts; task.prompt_column takes precedence."""
_WORD = re.compile(r"\w+")


class Overlap:
    """Word 8-grams of benchmark prompts: `grams` has each with the last benchmark that has it."""

    def __init__(self, task: TaskConfig, tables: Sequence[Table] = ()) -> None:
        """Reads task.benchmarks, and all of a benchmark used for evaluation. tables: training and held-out rows. Raises
        ValueError.
        """
        self.grams: dict[tuple[str, ...], str] = {}
        for number, name in enumerate(task.benchmarks):
            key = f"task.benchmarks[{number}]"
            texts = [text for text in _prompts(name, key, task) if text.strip()]
            if not texts:
                raise ValueError(f"{key} = {name!r}: holds no prompts: leave it out, or give the file of the benchmark")
            self._add(texts, name)
        # Training on a benchmark is the user's choice, so its held-out part is no reason to drop rows.
        trained = {rows.benchmark for rows in tables[:1]}
        for rows in tables[1:]:  # even if task.benchmarks names it: its release or data may differ
            if rows.benchmark and rows.benchmark not in trained:
                self._add(_problems(rows), rows.benchmark)

    def _add(self, texts: Iterable[str], name: str) -> None:
        for text in texts:
            self.grams |= dict.fromkeys(grams(text), name)

    def found(self, prompt: str | Sequence[Mapping[str, Any]]) -> str:
        """The benchmark that contains a prompt (text or messages); "" if none does."""
        if not self.grams:
            return ""
        texts = [prompt] if isinstance(prompt, str) else [text_of(message.get("content")) for message in prompt]
        return next((self.grams[gram] for text in texts for gram in grams(text) if gram in self.grams), "")


def grams(text: str) -> Iterator[tuple[str, ...]]:
    """The word 8-grams of a text, ignoring case and punctuation; all its words if there are fewer."""
    words = _WORD.findall(text.lower())
    for begin in range(max(1, len(words) - WORDS + 1) if words else 0):
        yield tuple(words[begin : begin + WORDS])


def _prompts(name: str, key: str, task: TaskConfig) -> Iterator[str]:
    if not name.startswith(BENCHMARK):
        return prompts_of_file(Path(from_home(key, name)), f"{key} = {name!r}", task.prompt_column)
    source = BENCHMARK + from_home(key, name.removeprefix(BENCHMARK))
    return _problems(read(source, dataclasses.replace(task, config={}), task.split, key))


def _problems(rows: Table) -> Iterator[str]:
    """The problems of a benchmark in parts, without the instructions added to each: other prompts may use the same words."""
    added = "|".join(map(re.escape, named(rows.benchmark.removeprefix(BENCHMARK)).added))
    return (part for row in rows.rows for part in re.split(added, row["prompt"]))


def prompts_of_file(path: Path, where: str, column: str) -> Iterator[str]:
    """The prompts of a file: lines of text, or rows with a prompt column. Raises ValueError."""
    if path.suffix == ".txt":
        try:
            yield from path.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{where}: cannot be read: {error}") from None
        return
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{where}: expected a file with one prompt a line (.txt), or {', '.join(SUFFIXES)}")
    for number, row in enumerate(rows_of(path, where)):
        usual = [name for known in COLUMNS for name in row if name.lower() == known]
        name = next((name for name in (column, *usual) if value_in(row, name, row) is not row), column)
        try:
            prompt = cell(row, name, "task.prompt_column")
            if not isinstance(prompt, str):
                check_messages(prompt)
        except ValueError as error:
            raise ValueError(f"{where}, row {number}: {error}") from None
        yield prompt if isinstance(prompt, str) else " ".join(text_of(message.get("content")) for message in prompt)
