"""A configured task -> prompts to train on and prompts held out, and the order in which they are taken."""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gspo.config.checks import VERIFIERS, nearest, played
from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.data.chat_template import Encoder, check_messages
from gspo.data.reasoning_gym import PREFIX
from gspo.data.sources import Table, generate, has_splits, read, table
from gspo.types import Prompt

GENERATED = 2000
"""Training items of a generated task when task.size is unset."""

T = TypeVar("T")


@dataclass(frozen=True)
class Demonstration:
    """A prompt and a completion to imitate, as text and as token ids that end with EOS."""

    prompt: Prompt
    text: str
    completion: tuple[int, ...]


def load_prompts(
    task: TaskConfig,
    eval: EvalConfig,
    encoder: Encoder,
    max_prompt_tokens: int | None = None,
    rows: Any = None,
    eval_rows: Any = None,
) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts to train on, and held-out prompts that are never among them.

    Held-out prompts come from task.eval_source or task.eval_split; else a generated task makes its own, and
    other sources give up their last rows (a tenth, eval.num_prompts at most). `rows` and `eval_rows` (lists
    of dicts or datasets.Dataset) take the place of the sources. max_prompt_tokens: longer prompts are
    refused. Raises ValueError that names the row.
    """
    if task.source.startswith(PREFIX) and encoder.template is not None and task.system is None:
        warnings.warn(
            "reasoning-gym scores what stands between <answer> and </answer>: say so in task.system",
            stacklevel=2,
        )

    def build(which: str, number: int, row: Mapping[str, Any]) -> Prompt:
        return _prompt(which, number, row, task, encoder, max_prompt_tokens)

    return _load(task, eval, rows, eval_rows, build, lambda prompt: prompt)


def load_demonstrations(
    task: TaskConfig,
    eval: EvalConfig,
    encoder: Encoder,
    max_tokens: int | None = None,
    rows: Any = None,
    eval_rows: Any = None,
) -> tuple[list[Demonstration], list[Demonstration]]:
    """What `gspo sft` imitates, to train on and held out, from the same sources as `load_prompts`.

    max_tokens: prompts longer than this with their completion are refused.
    """

    def build(which: str, number: int, row: Mapping[str, Any]) -> Demonstration:
        prompt = _prompt(which, number, row, task, encoder, max_tokens)
        text = _completion(row, task.completion_column)
        ids = encoder.completion(text)
        _fits(len(prompt.tokens) + len(ids), max_tokens, "with its completion ")
        return Demonstration(prompt, text, ids)

    return _load(task, eval, rows, eval_rows, build, lambda row: row.prompt)


def _load(
    task: TaskConfig,
    eval: EvalConfig,
    rows: Any,
    eval_rows: Any,
    build: Callable[[str, int, Mapping[str, Any]], T],
    prompt_of: Callable[[T], Prompt],
) -> tuple[list[T], list[T]]:
    """Reads the tables, builds the held-out rows, then the training rows that differ from them."""
    train, held_out = _tables(task, eval, rows, eval_rows)

    def built(source: Table, which: str, number: int, row: Mapping[str, Any]) -> T:
        try:
            return build(which, number, row)
        except ValueError as error:
            raise ValueError(f"{source.label}, row {number}: {error}") from error

    second = [built(held_out, "eval", number, row) for number, row in held_out]
    is_played = played(task)
    taken = {_key(prompt_of(item), is_played) for item in second}
    first: list[T] = []
    left_out = 0
    for number, row in train:
        item = built(train, "train", number, row)
        if _key(prompt_of(item), is_played) in taken:
            left_out += 1
            continue
        first.append(item)
        if len(first) == task.size:
            break
    if left_out:
        warnings.warn(f"{train.label}: {left_out} rows left out of training: their prompts are held out", stacklevel=3)
    if not first:
        raise ValueError(f"{train.label}: no row is left to train on: each of its prompts is also held out")
    if task.size is not None and len(first) < task.size and not task.source.startswith(PREFIX):
        warnings.warn(f"task.size = {task.size}: {train.label} has only {len(first)} training rows", stacklevel=3)
    return first, second


def _tables(task: TaskConfig, eval: EvalConfig, rows: Any, eval_rows: Any) -> tuple[Table, Table]:
    own_eval = eval_rows is None and task.eval_source in (None, task.source) and task.eval_split is None
    if rows is None and not task.source:
        raise ValueError("task.source is required: give it in the file or as --task.source VALUE")
    if task.eval_split is not None and not has_splits(task.eval_source or ("" if rows is not None else task.source)):
        raise ValueError(
            f"task.eval_split = {task.eval_split!r}: {task.eval_source or task.source} has no splits; unset it"
            " (held-out prompts of their own are given as task.eval_source)"
        )
    if rows is None and task.source.startswith(PREFIX):
        train, held_out = generate(task.source, task, task.size or GENERATED, eval.num_prompts if own_eval else 0)
        return train, held_out if own_eval else _held_out(task, eval, eval_rows)
    train = table(rows, "the data set") if rows is not None else read(task.source, task, task.split)
    if own_eval:
        cut = len(train) - min(eval.num_prompts, len(train) // 10)
        if cut == len(train) and eval.every:
            raise ValueError(
                f"{train.label}: {len(train)} rows are too few to hold some out for evaluation; give "
                "held-out prompts as task.eval_source, or set eval.every = 0"
            )
        return train.part(0, cut), train.part(cut, len(train))
    return train, _held_out(task, eval, eval_rows)


def _held_out(task: TaskConfig, eval: EvalConfig, eval_rows: Any) -> Table:
    source = task.eval_source or task.source
    if eval_rows is not None:
        rows = table(eval_rows, "the held-out data set")
    elif source.startswith(PREFIX):
        return generate(source, task, 0, eval.num_prompts)[1]
    else:
        key = "task.eval_source" if task.eval_source else "task.source"
        rows = read(source, task, task.eval_split or task.split, key)
    return rows.part(0, eval.num_prompts)


def _key(prompt: Prompt, is_played: bool) -> str:
    """What two prompts must share to be the same; for those that are played, what their environments hide too."""
    return json.dumps([prompt.messages, prompt.columns if is_played else None], sort_keys=True, default=str)


def _prompt(
    which: str, number: int, row: Mapping[str, Any], task: TaskConfig, encoder: Encoder, limit: int | None
) -> Prompt:
    source = (task.eval_source or task.source) if which == "eval" else task.source
    column = {PREFIX: "question", VERIFIERS: "prompt"}.get(source.partition(":")[0] + ":", task.prompt_column)
    messages = _cell(row, column, "task.prompt_column")
    for name in ("prompts", "completions", "completion_ids", "trainer_state"):
        if name in row:
            raise ValueError(f"a column {name!r} would hide the argument of that name of reward functions: rename it")
    try:
        tokens, opens_thinking = encoder.prompt(messages)
    except ValueError as error:
        raise ValueError(f"the prompt (column {column!r}) {error}") from error
    if not tokens:
        raise ValueError(f"the prompt (column {column!r}) is empty")
    _fits(len(tokens), limit, "")
    columns = {name: value for name, value in row.items() if name != column or column == "question"}
    return Prompt(f"{which}-{number}", messages, tokens, columns, source, opens_thinking)


def _cell(row: Mapping[str, Any], column: str, key: str) -> Any:
    if not isinstance(row, Mapping):
        raise ValueError(f"is a {type(row).__name__}, expected a dict of columns")
    if column not in row:
        names = ", ".join(map(str, row))
        raise ValueError(f"there is no column {column!r}{nearest(column, row)}; set {key} to one of: {names}")
    return row[column]


def _completion(row: Mapping[str, Any], column: str) -> str:
    value = _cell(row, column, "task.completion_column")
    if isinstance(value, list) and len(value) == 1:
        check_messages(value)
        value = value[0]["content"]
    if not isinstance(value, str):
        raise ValueError(
            f"the completion (column {column!r}) is a {type(value).__name__}; expected a string or one chat message"
        )
    if not value:
        raise ValueError(f"the completion (column {column!r}) is empty")
    return value


def _fits(tokens: int, limit: int | None, including: str) -> None:
    if limit is not None and tokens > limit:
        raise ValueError(
            f"the prompt {including}has {tokens} tokens, but only {limit} fit: shorten it or leave the row out, "
            "lower rollout.max_completion_length, or take a model with a longer context"
        )


def prompt_order(n: int, seed: int, epoch: int) -> list[int]:
    """The order of n prompts in pass `epoch`: the same on every machine."""
    order = list(range(n))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


class PromptStream(Generic[T]):
    """Hands out items pass after pass, each pass in an order of its own.

    `position`: how many were handed out; set it to resume.
    """

    def __init__(self, items: Sequence[T], seed: int) -> None:
        """Raises ValueError when there are no items."""
        if not items:
            raise ValueError("there are no prompts to take from")
        self.items = items
        self.seed = seed
        self.position = 0
        self._pass: tuple[int, list[int]] = (-1, [])

    def take(self, k: int) -> list[T]:
        """The next k items; a pass that ends is followed by the next."""
        taken = []
        for position in range(self.position, self.position + k):
            epoch, i = divmod(position, len(self.items))
            if self._pass[0] != epoch:
                self._pass = epoch, prompt_order(len(self.items), self.seed, epoch)
            taken.append(self.items[self._pass[1][i]])
        self.position += k
        return taken


def digest(prompts: Sequence[Prompt]) -> str:
    """A fingerprint of the prompts and their order."""
    fingerprint = hashlib.sha256()
    for prompt in prompts:
        fingerprint.update(f"{prompt.id} {prompt.tokens}\n".encode())
    return fingerprint.hexdigest()
