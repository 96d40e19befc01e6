"""Items and scores of reasoning-gym.

Runs in subprocesses: some of its tasks depend on global random state and on the hash seed, and unless both are fixed, a
resumed run would see other prompts.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gspo.config.import_function import describe
from gspo.config.suggestions import nearest
from gspo.safe import without_secrets

PREFIX = "reasoning_gym:"
SPAN = 2**21
"""Maximum items of one range of seeds. Training ranges lie below 2^31, held-out ranges above."""
CHUNK = 10_000
"""Maximum items of one dataset of the library: some tasks generate all of theirs at once."""
JUNK = ("I do not know", "?", "0", "1")
"""Completions that should not score, unless they are the answer."""
Entry = dict[str, Any]


@dataclass(frozen=True)
class ItemsRequest:
    """The numbers of items to generate for a task."""

    source: str
    config: dict[str, Any]
    seed: int
    train: int
    held_out: int


def open_task(source: str, config: dict[str, Any], seed: int, size: int) -> Any:
    """The library's dataset `reasoning_gym:NAME`. Raises ValueError for an unknown name or bad options."""
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS, create_dataset

    name = source.removeprefix(PREFIX)
    if name not in DATASETS:
        raise ValueError(f"task.source = {source!r}: reasoning-gym has no such task{nearest(name, DATASETS)}")
    option_names = [field.name for field in dataclasses.fields(DATASETS[name][1]) if field.name not in ("seed", "size")]
    for key in config:
        if key not in option_names:  # nor seed and size, which are task.seed and task.size
            options = f"; options are {', '.join(option_names)}"
            raise ValueError(f"task.config.{key}: {name} has no such option{nearest(key, option_names)}{options}")
    try:
        if name == "composite":
            parts = config.get("datasets", [])
            config = config | {"datasets": [DatasetSpec(**({"weight": 1.0, "config": {}} | part)) for part in parts]}
        return create_dataset(name, seed=seed, size=size, **config)
    except Exception as error:
        raise ValueError(f"task.config = {without_secrets(config)!r}: {name} refuses it: {describe(error)}") from error


def generate(request: ItemsRequest, note: Callable[[str], None]) -> tuple[list[Entry], list[Entry]]:
    """The entries of training and held-out items, without duplicate questions. `note` is called with warnings. Raises
    ValueError if the task has fewer distinct held-out items than requested, or no training item.
    """
    questions: set[str] = set()
    held_out = _distinct(request, 2**31, request.held_out, questions)
    if len(held_out) < request.held_out:
        raise ValueError(
            f"{request.source}: only {len(held_out)} of the {request.held_out} held-out items asked for are "
            "distinct; lower eval.num_prompts, or widen task.config so that the task has more items"
        )
    train = _distinct(request, 0, request.train, questions)
    if request.train and not train:
        raise ValueError(
            f"{request.source}: the {len(held_out)} held-out items leave no other item to train on; lower "
            "eval.num_prompts, or widen task.config so that the task has more items"
        )
    if len(train) < request.train:
        note(f"{request.source}: only {len(train)} of the {request.train} training items asked for are distinct")
    return train, held_out


def _distinct(request: ItemsRequest, base: int, count: int, questions: set[str]) -> list[Entry]:
    """So many items of a range of seeds that differ from those in `questions`, to which theirs are added."""
    if count > SPAN // 2:
        raise ValueError(f"{request.source}: {count} items are more than the {SPAN // 2} that one seed can make")
    base += request.seed % (2**31 // SPAN) * SPAN
    entries: list[Entry] = []
    limit = min(SPAN - CHUNK, 10 * count + 100)
    for start in range(0, limit if count else 0, chunk := max(1, min(count, CHUNK))):
        dataset = open_task(request.source, request.config, base + start, chunk)
        for i in range(chunk):
            _seed_globals(base + start + i)
            try:
                entry = dict(dataset[i])
            except Exception as error:
                where = f"{request.source}: item {start + i}"
                raise ValueError(f"{where} cannot be made with this task.config: {describe(error)}") from error
            if entry["question"] not in questions:
                questions.add(entry["question"])
                entries.append(entry)
            if len(entries) == count:
                return entries
    return entries


def _seed_globals(seed: int) -> None:
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def score(dataset: Any, answer: str | None, entry: Entry) -> float:
    """The library's score of an answer, in [0, 1]; 0 if its scorer cannot read it. Raises ValueError unless it is finite."""
    if not answer:
        return 0.0
    try:
        value = float(dataset.score_answer(answer, entry))
    except Exception:
        return 0.0
    if not math.isfinite(value):
        raise ValueError(f"the task's scorer returned {value}")
    return min(1.0, max(0.0, value))


def check(source: str, dataset: Any, entries: list[Entry], note: Callable[[str], None]) -> None:
    """Notes if right answers of a few items score less than 1, or if junk scores. Raises ValueError if no right answer
    scores 1.
    """
    golds = [(entry, entry["answer"].strip()) for entry in entries if isinstance(entry.get("answer"), str)]
    scores = [score(dataset, gold, entry) for entry, gold in golds]
    wrong = sum(value < 1 for value in scores)
    if golds and wrong == len(golds):
        raise ValueError(f"{source}: its scorer gives none of {wrong} right answers 1 (but {max(scores):.2f} at most)")
    if wrong:
        note(f"{source}: its scorer gives {wrong} of {len(golds)} right answers less than 1")
    tries = {f"the completion {junk!r}": [(entry, junk) for entry in entries] for junk in JUNK}
    tries["the right answer to another item"] = [
        (entry, other) for (entry, _), (_, other) in zip(golds, golds[1:] + golds[:1])
    ]
    for kind, completions in tries.items():
        paid = [score(dataset, completion, entry) for entry, completion in completions if completion != entry.get("answer")]
        mean = sum(paid) / max(1, len(paid))
        if len(paid) >= 4 and mean >= 0.3:
            note(f"{source}: its scorer pays {mean:.2f} on average for {kind}")
            return
