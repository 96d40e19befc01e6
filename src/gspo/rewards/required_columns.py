"""What the rewards of a run require of its data: columns, comparable right answers, tests."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.values import type_of
from gspo.data.columns import answer_column, judged_by, value_in
from gspo.rewards import code as programs
from gspo.rewards.answers import right_in
from gspo.rewards.graders import RewardFunction, result_of
from gspo.rewards.programs import columns_of
from gspo.types import Prompt

MISSING = ("", "nan", "NaN", "sNaN", "NAN", "NaT", "<NA>")  # as tables and arrays write a missing value


class RequiredColumns:
    """Requirements of the rewards `specs` and of the callables."""

    def __init__(
        self, reward: RewardConfig, code: CodeConfig, specs: Sequence[str], functions: Mapping[str, RewardFunction]
    ) -> None:
        self.compared = [name for name in ("exact", "math") if name in specs]
        self.column, self.code = reward.answer_column, code
        # columns named by settings and callables, each with its configuration key
        self.needs = {reward.answer_column: "reward.answer_column"} if self.compared else {}
        self.coded = "code" in specs
        if self.coded:
            self.needs[code.tests_column] = "code.tests_column"
        for function in functions.values():
            self.needs |= function.traits.needs
        self.of_benchmarks = {spec: needed for spec in specs if (needed := columns_of(spec))}
        self.parameters: dict[str, Sequence[str]] = {name: f.signature.required for name, f in functions.items()}
        self.columns: dict[str, set[str]] = {}  # columns of the checked prompts, by task

    def check(self, prompts: Iterable[Prompt]) -> None:
        """Raises ValueError if prompts lack what the rewards require."""
        for prompt in prompts:
            self.columns.setdefault(prompt.task, set()).update(prompt.columns)
            try:
                self._check(prompt)
            except ValueError as error:
                raise ValueError(f"prompt {prompt.id}: {error}") from None
        self.add({})

    def add(self, parameters: Mapping[str, Sequence[str]]) -> None:
        """Adds columns required by function parameters. Raises ValueError for one that all prompts of a task lack."""
        self.parameters |= parameters
        for name, required in self.parameters.items():
            for task, columns in self.columns.items():
                if lacking := [parameter for parameter in required if parameter not in columns]:
                    raise ValueError(
                        f"reward {name}: it cannot be called without {', '.join(map(repr, lacking))}: besides prompts and "
                        f"completions {task or 'the data'} has {', '.join(sorted(columns)) or 'no column'}; rename the "
                        "parameter, or give it a default"
                    )

    def _check(self, prompt: Prompt) -> None:
        for needed, key in self.needs.items():
            judged_by(prompt.columns, needed, key, prompt.task)
        for spec, columns in self.of_benchmarks.items():
            if lacking := [column for column in columns if column not in prompt.columns]:
                raise ValueError(
                    f"there is no column {lacking[0]!r}, which the reward {spec} needs: it scores its own benchmark; take "
                    "another in reward.functions"
                )
        if self.coded:
            try:
                programs.function_of(prompt.columns, programs.tests_of(prompt.columns, self.code.tests_column), self.code)
            except ValueError as error:
                raise ValueError(f"{error}; correct the row, or set [code] as the data has it") from None
        column = answer_column(prompt.task, self.column)
        if self.compared and (problem := _uncomparable(value_in(prompt.columns, column), "math" in self.compared)):
            raise ValueError(f"reward.answer_column = {column!r} {problem}")


def _uncomparable(value: Any, by_math: bool) -> str:
    """Why a right answer cannot be compared with a completion, or an empty string. by_math: Also by the reward `math`."""
    comparable = isinstance(value, (str, numbers.Real)) and not isinstance(value, bool)
    if value is None or (comparable and result_of(value) in MISSING):
        return f"is missing ({value!r:.20}): fill it in, or leave the row out"
    if comparable and by_math and right_in(result_of(value)) in MISSING:
        return f"has nothing to compare ({value!r:.40}): fill it in, or leave the row out"
    if comparable:
        return ""
    return f"holds {type_of(value)}: make it text or a number, or score with a module:function of yours"
