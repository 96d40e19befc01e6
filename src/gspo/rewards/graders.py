"""The named rewards, and how a reward function is called. Imports no torch, since reward workers run it."""

from __future__ import annotations

import asyncio
import inspect
import math
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from gspo.config.answer_format import after_thinking, tagged
from gspo.config.import_function import describe, load_function
from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.config.values import type_of
from gspo.data import reasoning_gym, reward_bounds
from gspo.data.columns import answer_column, value_in
from gspo.rewards import answers
from gspo.rewards.arguments import Arguments, RewardInput
from gspo.rewards.code import CodeReward, same_number
from gspo.rewards.programs import SOLVERS, columns_of, opened_for

# Call levels: a call for all completions; a call per unit, concurrently (async); a call per unit, in turn. A unit is one
# completion, or all completions of a group.
BATCH, TOGETHER, SINGLY = 0, 1, 2
NOT_THEIRS = str(Path(__file__).parents[1]), sysconfig.get_path("stdlib")  # where no reward function of a user is
Result = tuple[float | None, str | None]  # a value (None: not scored) and an error (None: none)


class Signature(NamedTuple):
    """How a reward can be called."""

    levels: Sequence[int]  # its call levels, in the order in which they are tried
    by_group: bool = False  # whether a unit is all completions of a group
    required: Sequence[str] = ()  # columns without which it cannot be called


@dataclass(frozen=True)
class Traits:
    """What a reward callable of gspo says of itself, in its attribute `traits`."""

    by_group: bool = False  # it compares completions: each call gets all completions of one group and no others
    spoken: bool = False  # it gets completions without their thinking
    limit: float | None = None  # seconds per call; None: reward.timeout
    needs: Mapping[str, str] = field(default_factory=dict)  # required columns, each with the key that names it
    wait: Callable[[], None] = lambda: None  # called before the run; may raise ValueError
    counts: Callable[[], dict[str, float]] = dict  # numbers for the metrics: the counts since the last call
    complete: bool = False  # it means to score every completion, so None is a failure and no abstention

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Traits:
        """The traits of `function`. Other attributes are the user's own, but for the mark of `by_group`."""
        traits = getattr(function, "traits", None)
        return traits if isinstance(traits, cls) else cls(by_group=bool(getattr(function, "by_group", False)))


class CallFailed(Exception):
    """A call without results. late: Whether it exceeded its time limit."""

    def __init__(self, why: str, late: bool = False) -> None:
        super().__init__(why)
        self.late = late

    @classmethod
    def by(cls, error: BaseException) -> CallFailed:
        """The failure of a call that raised `error`."""
        trl = "; if it expects TRL's messages, add a parameter completion_ids" * ("string indices must be" in str(error))
        return error if isinstance(error, cls) else cls(describe(error) + trl + _line_of(error))

    @classmethod
    def after(cls, timeout: float) -> CallFailed:
        """The failure of a call that took longer."""
        return cls(f"took longer than {timeout:g} s (reward.timeout)", late=True)


class WrongLength(ValueError):
    """A call that returned the wrong number of values, so that they cannot be matched to completions."""


def by_group(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a reward function that compares completions: each call gets all completions of one group and no others."""
    function.by_group = True  # type: ignore[attr-defined]
    return function


class PerCompletion:
    """A built-in scorer, called once per completion. notice: Text for the run to show."""

    signature = Signature((SINGLY,))

    def __init__(self, score: Callable[[RewardInput], float | None], notice: str = "") -> None:
        self.score, self.notice = score, notice

    def stream(self, rows: list[RewardInput], *_: Any) -> Iterator[list[Result]]:
        """Yields each row's result as soon as it is available."""
        for row in rows:
            try:
                yield [checked(self.score(row))]
            except Exception as error:
                yield _failed(error, [row])


class RewardFunction:
    """A user's `f(prompts, completions, **columns) -> list[float | None]`, plain or async, or one with TRL's signature."""

    notice = ""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.traits, self.arguments = function, Traits.of(function), Arguments(function)
        self.text_of = spoken if self.traits.spoken else lambda row: row.completion
        call = getattr(function, "__call__", None)  # noqa: B004
        concurrent = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
        levels = [TOGETHER, SINGLY] if concurrent else [SINGLY]
        if not self.traits.by_group:
            levels.insert(0, BATCH)
        self.signature = Signature(levels, self.traits.by_group, self.arguments.required)

    def stream(self, rows: list[RewardInput], level: int, runner: asyncio.Runner, timeout: float) -> Iterator[list[Result]]:
        """Yields the results in row order; only an async call is cancelled in time. Raises
        CallFailed if the call for all rows fails.
        """
        if level == BATCH:
            try:
                results = self._call(rows, runner, timeout)
            except WrongLength as error:  # a call per completion may return a value, but maybe not its own
                results = [(None, describe(error))] * len(rows)
            except BaseException as error:
                raise CallFailed.by(error) from None
            yield results
        elif level == TOGETHER:
            yield runner.run(self._together(self._units(rows), timeout))
        else:
            for unit in self._units(rows):
                try:
                    results = self._call(unit, runner, timeout)
                except BaseException as error:
                    results = _failed(error, unit)
                yield results

    def _units(self, rows: list[RewardInput]) -> list[list[RewardInput]]:
        if not self.traits.by_group:
            return [[row] for row in rows]
        return [list(group) for _, group in groupby(rows, lambda row: row.group)]

    def _call(self, rows: list[RewardInput], runner: asyncio.Runner, timeout: float) -> list[Result]:
        returned = self.function(**self.arguments.of(rows, self.text_of))
        if inspect.isawaitable(returned):
            returned = runner.run(_within(returned, timeout))
        return _results(returned, len(rows))

    async def _together(self, units: list[list[RewardInput]], timeout: float) -> list[Result]:
        async def results_of(unit: list[RewardInput]) -> list[Result]:
            try:
                returned = self.function(**self.arguments.of(unit, self.text_of))
                return _results(await _within(returned, timeout), len(unit))
            except BaseException as error:
                return _failed(error, unit)

        return [result for results in await asyncio.gather(*map(results_of, units)) for result in results]


async def _within(awaitable: Awaitable[Any], timeout: float) -> Any:
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await awaitable
    except BaseException:  # whatever the function raises when cancelled
        if limit.expired():
            raise CallFailed.after(timeout) from None
        raise


def _line_of(error: BaseException) -> str:
    """Where the function that was called raised the error, as " (file.py:12)"; "" if it raised nothing itself."""
    frames = traceback.extract_tb(error.__traceback__)
    called = next((frame.filename for frame in frames if not frame.filename.startswith(NOT_THEIRS)), None)
    lines = [frame.lineno for frame in frames if frame.filename == called]
    return f" ({Path(called).name}:{lines[-1]})" if called else ""


def _failed(error: BaseException, unit: list[RewardInput]) -> list[Result]:
    return [(None, str(CallFailed.by(error)))] * len(unit)


def _results(returned: Any, count: int) -> list[Result]:
    if isinstance(returned, (str, dict, set)) or not hasattr(returned, "__iter__"):
        raise ValueError(f"returned {type_of(returned)}, expected a list of {count} numbers or None")
    values = list(returned)
    if len(values) != count:
        raise WrongLength(f"returned {len(values)} values for {count} completions: return one number or None for each")
    return [checked(value) for value in values]


def checked(value: Any) -> Result:
    """A reward as a float (data/reward_bounds.py) or None, or an error if it is invalid."""
    if value is None:
        return None, None
    try:
        number = math.nan if isinstance(value, str) else float(value)
    except Exception:
        number = math.nan
    if not math.isfinite(number):
        return None, f"returned {value!r:.80}: expected one finite number for each completion"
    problem = reward_bounds.invalid(number)
    return (None, f"returned {problem}") if problem else (number, None)


def load(
    name: str, reward: RewardConfig, task: TaskConfig, code: CodeConfig | None = None
) -> PerCompletion | RewardFunction:
    """The reward named `name`. Raises ValueError if it is unavailable."""
    code = code or CodeConfig()
    if name == "task":
        sources = [s for s in (task.source, task.eval_source) if s and s.startswith(reasoning_gym.PREFIX)]
        datasets = {source: reasoning_gym.open_task(source, task.config, seed=0, size=1) for source in sources}

        def of_task(row: RewardInput) -> float:
            if row.task not in datasets:  # of a stage
                datasets[row.task] = reasoning_gym.open_task(row.task, {}, seed=0, size=1)
            return reasoning_gym.score(datasets[row.task], tagged(spoken(row)), row.columns)

        return PerCompletion(of_task)
    if name == "exact":
        return PerCompletion(lambda row: _exact(row, answer_column(row.task, reward.answer_column)))
    if name == "math":
        return PerCompletion(lambda row: _math(row, answer_column(row.task, reward.answer_column)))
    if name == "code":
        graded = CodeReward(code)
        return PerCompletion(lambda row: graded(spoken(row), row.columns), graded.notice)
    if name in SOLVERS:
        (sandbox, notice), solves, columns = opened_for(name, code), SOLVERS[name], columns_of(name)
        return PerCompletion(lambda row: solves(sandbox, spoken(row), *(row.columns[each] for each in columns)), notice)
    return RewardFunction(load_function(name, "reward.functions"))


def spoken(row: RewardInput) -> str:
    """A completion without its thinking, which may have begun in the prompt; "" if the thinking never ends."""
    return after_thinking(row.completion, row.opens_thinking)


def gold(row: RewardInput, column: str) -> str:
    """The right answer of a row (`result_of` its column). Raises ValueError if it is empty."""
    text = result_of(value_in(row.columns, column))
    if not text:
        raise ValueError(f"column {column!r} is empty")
    return text


def result_of(answer: Any) -> str:
    """What stands after the last "#### " at the start of a line of a right answer, as in GSM8K, else all of it."""
    return f"\n{str(answer).rstrip()} ".rpartition("\n#### ")[2].strip()  # also if nothing follows


def _exact(row: RewardInput, column: str) -> float:
    completion = spoken(row)
    answer = tagged(completion)
    text, right = completion.strip() if answer is None else answer, gold(row, column)
    # a column of numbers may turn 7 into 7.0
    return float(text == right or (not isinstance(value_in(row.columns, column), str) and same_number(text, right)))


def _math(row: RewardInput, column: str) -> float:
    text, completion = gold(row, column), spoken(row)
    right = answers.boxed(text) or text
    answer = answers.final(completion)
    return float(answers.found(completion, right) if answer is None else answers.same(answer, right))
