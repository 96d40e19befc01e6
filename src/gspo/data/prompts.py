"""Training and held-out prompts of a configured task, and the order in which they are used."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from gspo.config.rollout import TaskConfig
from gspo.config.source_kind import in_environment
from gspo.config.values import type_of
from gspo.data.chat_template import Encoder, arguments_of
from gspo.data.columns import cell
from gspo.data.decontamination import WORDS, Overlap
from gspo.data.loaders import Table
from gspo.data.media import is_media
from gspo.data.messages import check_messages, text_of
from gspo.data.reasoning_gym import PREFIX
from gspo.data.splits import plain, prompt_column
from gspo.types import Prompt

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Demonstration(Prompt):
    """A prompt with a completion to imitate, as text and as token ids that end with EOS."""

    text: str = ""
    completion: tuple[int, ...] = ()


Built = TypeVar("Built", bound=Prompt)
Build = Callable[[str, int, Mapping[str, Any]], Built]
"""Builds a row, given the prefix of its id, its number and its columns."""


class Overlong(ValueError):
    """A prompt, or a prompt with its completion, that exceeds the token limit."""


def load_prompts(
    task: TaskConfig, tables: tuple[Table, Table], encoder: Encoder, limit: int | None = None, overlap: Overlap | None = None
) -> tuple[list[Prompt], list[Prompt]]:
    """Training prompts, and held-out prompts that are never among them, of training and held-out rows. Raises ValueError
    with the row at fault. limit: tokens of a prompt; longer ones are refused, or left out (task.too_long).
    """
    return _load(task, tables, encoder, partial(_prompt, task=task, encoder=encoder, limit=limit), overlap)


def first_prompts(task: TaskConfig, encoder: Encoder, limit: int | None, rows: Table, count: int) -> list[Prompt]:
    """At most `count` prompts from the beginning of training rows, without the checks that need all rows."""
    build = partial(_prompt, task=task, encoder=encoder, limit=limit)
    prompts = list(islice(_built(task, rows, "train", build), count))
    if prompts:
        _log_system(task, encoder)
    return prompts


def _log_system(task: TaskConfig, encoder: Encoder) -> None:
    """Logs which system message prompts get that they do not have, and where it stands. Environments write their own."""
    if in_environment(task):
        return
    lacks = encoder.template is not None and not encoder.takes_system
    where = " at the beginning of their first user message, for the chat template shows no system message" if lacks else ""
    if encoder.defaulted:
        text = f'prompts get the system message "{encoder.default_system}"{where}: a reward reads the answer there'
        logger.info(f'{text} (task.system sets another one, "" none)')
    elif encoder.system and where:
        logger.info(f"prompts get task.system{where}")


def load_demonstrations(
    task: TaskConfig, tables: tuple[Table, Table], encoder: Encoder, limit: int | None = None
) -> tuple[list[Demonstration], list[Demonstration]]:
    """Training and held-out demonstrations, as `load_prompts`. `limit`: tokens of a prompt with its completion."""

    def build(which: str, number: int, row: Mapping[str, Any]) -> Demonstration:
        prompt = _prompt(which, number, row, task, encoder, limit)
        text = _completion(row, task.completion_column)
        check_thoughts(prompt.opens_thinking, text)
        ids = encoder.completion(text)
        _fits(len(prompt.tokens) + len(ids), limit, "with its completion ")
        return Demonstration(**vars(prompt), text=text, completion=ids)

    return _load(task, tables, encoder, build)


def check_thoughts(opens: bool, completion: str) -> None:
    """Raises ValueError for a completion to imitate that would be all thoughts. opens: whether its prompt opens <think>."""
    if opens and "</think>" not in completion:
        raise ValueError(
            "the prompt ends inside <think>, and the completion never ends it: begin it with the thoughts and </think>, or "
            "set task.template_args = {enable_thinking = false}, if the chat template has it"
        )


def other_prompts(
    name: str,
    task: TaskConfig,
    rows: Table,
    encoder: Encoder,
    limit: int | None,
    held_out: Sequence[Prompt],
    overlap: Overlap,
) -> list[Prompt]:
    """Training prompts from another source than task.source, which `task` names, without those that are held out. `name`:
    prefix of their ids. Otherwise as load_prompts.
    """
    return _training(task, rows, name, partial(_prompt, task=task, encoder=encoder, limit=limit), held_out, overlap)


def _load(
    task: TaskConfig, tables: tuple[Table, Table], encoder: Encoder, build: Build[Built], overlap: Overlap | None = None
) -> tuple[list[Built], list[Built]]:
    """Builds the held-out rows, then the training rows that differ from them."""
    held_out = list(_built(task, tables[1], "eval", build))
    if len(tables[1]) and not held_out:
        raise ValueError(
            f"{tables[1].label}: all {len(tables[1])} held-out rows are too long (task.too_long): lower "
            "rollout.max_completion_length or eval.max_completion_length, or give shorter ones"
        )
    if (different := len({identity(prompt, in_environment(task)) for prompt in held_out})) < len(held_out):
        text = f"{tables[1].label}: only {different} of {len(held_out)} held-out prompts are different"
        logger.warning(f"{text}, so intervals of accuracies are too narrow: give each once")
    evaluates = not len(tables[0])
    train = [] if evaluates else _training(task, tables[0], "train", build, held_out, overlap or Overlap(task, tables))
    if train or held_out:
        _log_system(task, encoder)
    return train, held_out


def _built(task: TaskConfig, source: Table, which: str, build: Build[Built]) -> Iterator[Built]:
    """Yields the built rows of a source as they are read; rows that are too long are left out if the task says so."""
    too_long = 0
    for number, row in source:
        try:
            yield build(which, number, row)
        except ValueError as error:
            if task.too_long == "refuse" or not isinstance(error, Overlong):
                raise ValueError(f"{source.label}, row {number}: {error}") from error
            too_long += 1
    if too_long:
        logger.info(f"{source.label}: {too_long} rows left out: too long (task.too_long)")


def _training(
    task: TaskConfig, source: Table, which: str, build: Build[Built], held_out: Sequence[Prompt], overlap: Overlap
) -> list[Built]:
    """The training rows of a source, except those that are held out or that a benchmark contains."""
    taken = {identity(prompt, in_environment(task)) for prompt in held_out}
    kept: list[Built] = []
    keys: set[Any] = set()
    left_out, known = 0, list[str]()
    for prompt in _built(task, source, which, build):
        key = identity(prompt, in_environment(task))
        if key in taken:
            left_out += 1
            continue
        if benchmark := overlap.found(prompt.messages):
            known.append(f"{prompt.id} in {benchmark}")
            continue
        kept.append(prompt)
        keys.add(key)
        if len(kept) == task.size:
            break
    if left_out:
        logger.warning(f"{source.label}: {left_out} rows left out of training: their prompts are held out")
    if known:
        logger.warning(
            f"{source.label}: {len(known)} rows left out of training: they share {WORDS} words in a row with a prompt of "
            f"a benchmark (task.benchmarks, task.eval_source), the first one {known[0]}"
        )
    if not kept:
        raise ValueError(f"{source.label}: no row is left to train on: {_why_none(left_out, len(known))}")
    if len(keys) == 1 < len(kept):
        text = f"{source.label}: all {len(kept)} training prompts are the same"
        logger.warning(f"{text}; if that is not meant, name the column that differs as task.prompt_column")
    if task.size is not None and len(kept) < task.size and not task.source.startswith(PREFIX):
        logger.warning(f"task.size = {task.size}: {source.label} has only {len(kept)} training rows")
    return kept


def _why_none(held_out: int, known: int) -> str:
    if known:
        return "benchmarks know its prompts (task.benchmarks, task.eval_source); give rows with other prompts"
    if not held_out:
        return "all are too long; lower rollout.max_completion_length, or take a model with a longer context"
    return (
        "each of its prompts is also held out; give rows with different prompts, or held-out ones of their own as "
        "task.eval_source, or set eval.num_prompts = 0"
    )


def identity(prompt: Prompt, with_columns: bool) -> tuple[tuple[int, ...], str]:
    """The key that equal prompts share: the model's tokens, and with_columns what environments and rewards read besides."""
    return prompt.tokens, json.dumps(prompt.columns, sort_keys=True, default=str) if with_columns else ""


def _prompt(
    which: str, number: int, row: Mapping[str, Any], task: TaskConfig, encoder: Encoder, limit: int | None
) -> Prompt:
    source = (task.eval_source or task.source) if which == "eval" else task.source
    column = prompt_column(which, task)
    messages = cell(row, column, "task.prompt_column")
    for name in row:
        if name in ("prompts", "completions", "completion_ids", "trainer_state"):
            raise ValueError(f"a column {name!r} would hide the argument of that name of reward functions: rename it")
        # An environment reads its columns itself.
        if name != column and is_media(str(name), row[name]) and not in_environment(task):
            raise ValueError(
                f"a column {name!r} belongs to the prompt: the policy reads and is trained on text alone, whatever its "
                "model can read. Leave such rows out, or drop the column if the text is enough; one that only rewards read "
                "needs another name, and no image in it"
            )
    tools = [] if in_environment(task) else _tools(row.get("tools"))
    if tools and not (encoder.template and "tools" in arguments_of(encoder.tokenizer.get_chat_template(tools=tools))):
        raise ValueError(
            "the prompt does not show the tools of the column 'tools': take a chat template that shows tools, or write them "
            "into a message and give the column another name"
        )
    try:
        tokens, opens_thinking = encoder.prompt(messages, tools)
    except ValueError as error:
        raise ValueError(f"the prompt (column {column!r}) {error}") from error
    last = {"role": "user", "content": messages} if isinstance(messages, str) else messages[-1]
    silent = last["role"] == "user" and not text_of(last.get("content")).strip()  # what a tool returns may be empty
    if not tokens or (silent and encoder.template and not in_environment(task)):
        raise ValueError(f"the prompt (column {column!r}) is empty")
    _fits(len(tokens), limit)
    columns = {name: plain(value) for name, value in row.items() if name != column or column == "question"}
    return Prompt(f"{which}-{number}", messages, tokens, columns, source, opens_thinking)


def _tools(value: Any) -> list[Any]:
    """The tools that a prompt shows, of the column of that name: JSON schemas, or JSON of them; [] for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    named = isinstance(value, list) and all(isinstance(tool, dict) and {*tool} & {"function", "name"} for tool in value)
    return plain(value) if named else []


def _completion(row: Mapping[str, Any], column: str) -> str:
    value = cell(row, column, "task.completion_column")
    if isinstance(value, list) and len(value) == 1:
        check_messages(value)
        if value[0].get("tool_calls"):
            raise ValueError(
                f"the completion (column {column!r}) has tool calls: give the turn as the text that the model writes"
            )
        value = text_of(value[0]["content"])
    if not isinstance(value, str):
        raise ValueError(f"the completion (column {column!r}) is {type_of(value)}; expected a string or one chat message")
    if not value:
        raise ValueError(f"the completion (column {column!r}) is empty")
    return value


def _fits(tokens: int, limit: int | None, including: str = "") -> None:
    if limit is not None and tokens > limit:
        lower = "" if including else "lower rollout.max_completion_length or eval.max_completion_length (the longer), "
        raise Overlong(
            f'the prompt {including}has {tokens} tokens, but only {limit} fit: shorten it, set task.too_long = "leave_out", '
            f"{lower}or take a model with a longer context"
        )


def prompt_order(n: int, seed: int, epoch: int) -> list[int]:
    """The order of n prompts in epoch `epoch`, the same on every machine."""
    order = list(range(n))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


class PromptStream(Generic[T]):
    """Hands out items epoch after epoch, each in its own order. `position` counts them; set it to resume."""

    def __init__(self, items: Sequence[T], seed: int) -> None:
        """Raises ValueError if there are no items."""
        if not items:
            raise ValueError("there are no prompts to take from")
        self.items = items
        self.seed = seed
        self.position = 0
        self._pass: tuple[int, list[int]] = (-1, [])

    def take(self, k: int) -> list[T]:
        """The next k items; the end of an epoch is followed by the next."""
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
