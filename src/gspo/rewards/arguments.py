"""Builds the arguments of a reward function from its signature: for functions written for gspo or for TRL's GRPOTrainer."""

from __future__ import annotations

import copy
import inspect
from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gspo.data.messages import text_of

NOT_SUPPLIED = ("log_extra", "log_metric", "environments")  # what TRL passes to reward functions and gspo does not
TRL = {"completion_ids", "trainer_state", *NOT_SUPPLIED}  # parameters that mark a function as written for TRL


@dataclass(frozen=True)
class TrainerState:
    """Training progress, under the names of TRL's trainer_state."""

    global_step: int = 0  # completed steps
    max_steps: int = 0  # 0 without training, as in a standalone evaluation


class RewardInput(NamedTuple):
    """One completion to score."""

    prompt: str | list[dict[str, Any]]
    completion: str
    task: str
    columns: dict[str, Any]
    opens_thinking: bool = False  # the prompt ends inside an open <think>
    group: Hashable = ""  # the same for the completions that are compared
    ids: Sequence[int] = array("i")  # of the completion's tokens
    state: TrainerState = TrainerState()


class Arguments:
    """Builds the arguments for calls of `function`.

    A function without **keywords gets the columns that it names, others get all columns. A decorator with **keywords
    forwards them, so it also gets those that the wrapped function names, which it may instead supply itself. A function with
    a TRL parameter is called as TRL does: its **keywords hold more than columns, and for a chat prompt its completion is a
    list with one message. Without the columns `required` it cannot be called. Raises ValueError for a function that requires
    an argument that gspo does not have.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        own, takes_any = _parameters(function, follow_wrapped=False)
        within, takes_any = _parameters(function, follow_wrapped=True) if takes_any else (own, False)
        names = {parameter.name for parameter in (*own, *within)}
        self.names = None if takes_any else names
        self.like_trl = bool(TRL & names)
        needed = [parameter.name for parameter in own if parameter.default is parameter.empty]
        self.required = tuple(name for name in needed if name not in ("prompts", "completions", *TRL))
        if lacking := [name for name in needed if name in NOT_SUPPLIED]:
            label = getattr(function, "__name__", type(function).__name__)
            raise ValueError(
                f"reward function {label}: gspo has no {lacking[0]!r} for it, which TRL has: give it the default None, and "
                "do without it where it is None"
            )

    def of(self, rows: Sequence[RewardInput], text_of: Callable[[RewardInput], str]) -> dict[str, Any]:
        """The keyword arguments of a call for `rows`, copied: what one call modifies, no other call sees."""
        prompts = [copy.deepcopy(row.prompt) for row in rows]
        completions: list[Any] = [text_of(row) for row in rows]
        columns = {name: None for row in rows for name in row.columns if self._wants(name)}
        values: dict[str, Any] = {name: [copy.deepcopy(row.columns.get(name)) for row in rows] for name in columns}
        if self.like_trl:
            completions = list(map(_message, prompts, completions))
            values |= {"completion_ids": [list(row.ids) for row in rows], "trainer_state": rows[0].state}
        values |= {"prompts": prompts, "completions": completions}
        return {name: value for name, value in values.items() if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return self.names is None or name in self.names


def _parameters(function: Callable[..., Any], follow_wrapped: bool) -> tuple[list[inspect.Parameter], bool]:
    """The named parameters of a function, or of the one that it decorates, and whether it takes any keyword."""
    parameters = inspect.signature(function, follow_wrapped=follow_wrapped).parameters.values()
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters)


def _message(prompt: Any, text: str) -> Any:
    """A completion in TRL's form. A final assistant message, which it continues, moves from the prompt into it."""
    if isinstance(prompt, str):
        return text
    begun = text_of(prompt.pop()["content"]) if prompt and prompt[-1].get("role") == "assistant" else ""
    return [{"role": "assistant", "content": begun + text}]
