"""What a reward function is called with, by its signature: functions written for gspo and for TRL's GRPOTrainer."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from gspo.rewards.graders import RewardInput

NOT_SUPPLIED = ("log_extra", "log_metric", "environments")
"""What TRL hands to reward functions and gspo does not."""
TRL = {"completion_ids", "trainer_state", *NOT_SUPPLIED}
"""Parameters by which a function shows that it was written for TRL."""


@dataclass(frozen=True)
class TrainerState:
    """How far the training is, under the names of TRL's trainer_state: steps that are done, and steps in all (0: no
    training, as in an evaluation alone).
    """

    global_step: int = 0
    max_steps: int = 0

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"trainer_state has no {name!r} in gspo, only global_step and max_steps")


class Arguments:
    """What `function` is called with.

    One without **keywords gets what it names. One that names what only TRL has, or `completions` without `prompts`, is
    called as TRL does: for a chat prompt its completion is a list with one message. Raises ValueError for a function that
    cannot do without what gspo does not have.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.names: set[str] | None = None
        self.as_messages = False
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            self.names = set(parameters)
        self.as_messages = bool(TRL & set(parameters)) or ("completions" in parameters and "prompts" not in parameters)
        for name in NOT_SUPPLIED:
            if name in parameters and parameters[name].default is inspect.Parameter.empty:
                label = getattr(function, "__name__", type(function).__name__)
                raise ValueError(
                    f"reward function {label}: gspo has no {name!r} for it, which TRL has: give it the default None, and "
                    "do without it where it is None"
                )

    def of(self, rows: Sequence[RewardInput], text_of: Callable[[RewardInput], str]) -> dict[str, Any]:
        """The keyword arguments of a call for `rows`. All of it is the call's own: what it changes, no other call sees."""
        prompts = [_copied(row.prompt) for row in rows]
        completions: list[Any] = [text_of(row) for row in rows]
        if self.as_messages:
            completions = [_message(prompt, text) for prompt, text in zip(prompts, completions)]
        columns = {name: None for row in rows for name in row.columns if self._wants(name)}
        values: dict[str, Any] = {name: [_copied(row.columns.get(name)) for row in rows] for name in columns}
        values |= {"prompts": prompts, "completions": completions}
        if self._wants("completion_ids"):
            values["completion_ids"] = [list(row.ids) for row in rows]
        if self._wants("trainer_state") and rows:
            values["trainer_state"] = rows[0].state
        return {name: value for name, value in values.items() if self._wants(name)}

    def _wants(self, name: str) -> bool:
        return self.names is None or name in self.names


def _message(prompt: Any, text: str) -> Any:
    """A completion as TRL has it. A last message of the assistant, which the completion continues, moves from the prompt to
    it.
    """
    if isinstance(prompt, str):
        return text
    begun = prompt.pop()["content"] if prompt and prompt[-1].get("role") == "assistant" else ""
    return [{"role": "assistant", "content": begun + text}]


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied, such as an open file, is handed over itself
        return value
