"""What the rewards of a run require of its data: columns, comparable right answers, tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.data.columns import judged_by, value_in
from gspo.rewards import code as programs
from gspo.rewards.graders import RewardFunction, uncomparable
from gspo.rewards.programs import columns_of
from gspo.types import Prompt

SHOWN = 12  # columns listed in an error


class RequiredColumns:
    """Requirements of the rewards `specs` and of the callables.

    Attributes:
        needs: Columns named by settings and callables, each with its configuration key.
    """

    def __init__(
        self, reward: RewardConfig, code: CodeConfig, specs: Sequence[str], functions: Mapping[str, RewardFunction]
    ) -> None:
        self.compared = [name for name in ("exact", "math") if name in specs]
        self.column, self.code = reward.answer_column, code
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
                    raise ValueError(_lacking(name, lacking, task, sorted(columns)))

    def _check(self, prompt: Prompt) -> None:
        for needed, key in self.needs.items():
            judged_by(prompt.columns, needed, key)
        for spec, columns in self.of_benchmarks.items():
            if lacking := [column for column in columns if column not in prompt.columns]:
                raise ValueError(
                    f"there is no column {lacking[0]!r}, which the reward {spec} needs: it scores its own benchmark; take "
                    "another in reward.functions"
                )
        if self.coded:
            try:
                programs.function_of(prompt.columns, programs.tests_by_stage(prompt.columns, self.code), self.code)
            except ValueError as error:
                raise ValueError(f"{error}; mend the row, or set [code] as the data has it") from None
        if self.compared and (problem := uncomparable(value_in(prompt.columns, self.column))):
            raise ValueError(
                f"reward.answer_column = {self.column!r} {problem}, or score with a module:function of yours in place of "
                f"{' and '.join(self.compared)}"
            )


def _lacking(name: str, lacking: Sequence[str], task: str, columns: Sequence[str]) -> str:
    names = ", ".join(repr(each) for each in lacking)
    more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
    have = f"the columns {', '.join(columns[:SHOWN])}{more}" if columns else "no other column"
    return (
        f"reward {name}: it cannot be called without {names}: it gets prompts, completions, and columns of the data, and "
        f"{task or 'the data'} has {have}; rename the parameter, or give it a default"
    )
