"""Builds the arguments of a reward function from its signature: for functions written for gspo or for TRL's GRPOTrainer."""

from __future__ import annotations

import copy
import inspect
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

NOT_SUPPLIED = ("log_extra", "log_metric", "environments")
"""Arguments that TRL passes to reward functions and gspo does not."""
ALWAYS = ("prompts", "completions")
"""Arguments of every call."""
TRL = {"completion_ids", "trainer_state", *NOT_SUPPLIED}
"""Parameters that mark a function as written for TRL."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class TrainerState:
    """Training progress, under the names of TRL's trainer_state.

    Attributes:
        global_step: Completed steps.
        max_steps: Total steps; 0 without training, as in a standalone evaluation.
    """

    global_step: int = 0
    max_steps: int = 0

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"trainer_state has no {name!r} in gspo, only global_step and max_steps")


class RewardInput(NamedTuple):
    """One completion to score.

    Attributes:
        opens_thinking: The prompt ends inside an open <think>.
        group: Id of the prompt.
        ids: Token ids of the completion.
        state: Training progress.
    """

    prompt: str | list[dict[str, Any]]
    completion: str
    task: str
    columns: dict[str, Any]
    opens_thinking: bool = False
    group: str = ""
    ids: Sequence[int] = array("i")
    state: TrainerState = TrainerState()


class Arguments:
    """Builds the arguments for calls of `function`.

    A function without **keywords gets the columns that it names, others get all columns. A decorator with **keywords
    forwards them, so it also gets those that the wrapped function names, which it may instead supply itself. A function with
    a TRL parameter is called as TRL does: its **keywords hold more than columns, and for a chat prompt its completion is a
    list with one message. Raises ValueError for a function that requires an argument that gspo does not have.

    Attributes:
        required: Columns without which the function cannot be called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        own, last = _parameters(function, follow_wrapped=False), _parameters(function, follow_wrapped=True)
        if not _takes_any(own):
            last = own
        names = {p.name for p in [*own, *last] if p.kind not in VARIADIC}
        self.names = None if _takes_any(last) else names
        self.like_trl = bool(TRL & names)
        needed = [p for p in own if p.default is p.empty and p.kind not in VARIADIC]
        self.required = tuple(p.name for p in needed if p.name not in (*ALWAYS, *TRL))
        label = getattr(function, "__name__", type(function).__name__)
        for parameter in needed:
            if parameter.name in NOT_SUPPLIED:
                raise ValueError(
                    f"reward function {label}: gspo has no {parameter.name!r} for it, which TRL has: give it the default "
                    "None, and do without it where it is None"
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ValueError(
                    f"reward function {label}: it takes {parameter.name!r} by position alone, and gspo calls it by names: "
                    'take the "/" or "__" out of its signature'
                )

    def of(self, rows: Sequence[RewardInput], text_of: Callable[[RewardInput], str]) -> dict[str, Any]:
        """The keyword arguments of a call for `rows`, copied: what one call modifies, no other call sees."""
        prompts = [_copied(row.prompt) for row in rows]
        completions: list[Any] = [text_of(row) for row in rows]
        if self.like_trl:
            completions = [_message(prompt, text) for prompt, text in zip(prompts, completions)]
        columns = {name: None for row in rows for name in row.columns if self._wants(name)}
        values: dict[str, Any] = {name: [_copied(row.columns.get(name)) for row in rows] for name in columns}
        values |= {"prompts": prompts, "completions": completions}
        if self.like_trl:
            values |= {"completion_ids": [list(row.ids) for row in rows], "trainer_state": rows[0].state}
        return {name: value for name, value in values.items() if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return self.names is None or name in self.names


def _parameters(function: Callable[..., Any], follow_wrapped: bool) -> list[inspect.Parameter]:
    """The parameters of the function itself, which may be a decorator, or of the function within."""
    try:
        return [*inspect.signature(function, follow_wrapped=follow_wrapped).parameters.values()]
    except (TypeError, ValueError):  # Python cannot tell
        return [inspect.Parameter("columns", inspect.Parameter.VAR_KEYWORD)]


def _takes_any(parameters: Sequence[inspect.Parameter]) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in parameters)


def _message(prompt: Any, text: str) -> Any:
    """A completion in TRL's form. A final assistant message, which it continues, moves from the prompt into it."""
    if isinstance(prompt, str):
        return text
    begun = prompt.pop()["content"] if prompt and prompt[-1].get("role") == "assistant" else ""
    return [{"role": "assistant", "content": begun + text}]


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # not copyable, such as an open file: passed as is
        return value
