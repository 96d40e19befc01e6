"""The scoring of benchmarks whose replies are programs: reward functions that run them in a sandbox.

Expected outputs stay outside of it, and what a program says comes out as plain data. Checks of HumanEval and checkers of
Codeforces run in a second sandbox, after the program has ended.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from gspo.rewards.code import same_stdout, same_value
from gspo.rewards.sandbox.open import Sandbox, open_sandbox
from gspo.rewards.sandbox.types import Case, Language, Limits, Outcome, Program

LIVECODEBENCH = Limits(seconds=6.0, memory=4 << 30)
HUMANEVAL = Limits(seconds=3.0)
CHECKER = Limits(seconds=10.0)
MODULES = (
    "bisect collections copy datetime functools heapq io itertools json math operator random re statistics string sys typing"
)
"""What solutions of LiveCodeBench use without importing it: the sites that the problems come from give it to them."""
_FUTURE = re.compile(r"^from __future__ import .*$\n?", re.MULTILINE)
_PRELUDE = "".join(f"import {name}\nfrom {name} import *\n" for name in reversed(MODULES.split()))
PRELUDE = f"{_PRELUDE}from builtins import *\nsys.setrecursionlimit(50000)\n"


_FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)


def block(text: str) -> tuple[str | None, Language]:
    """The code in the last complete fenced block of a text, None without one, and its language: C++ where the fence says so,
    else Python.
    """
    blocks = _FENCE.findall(text)
    if not blocks:
        return None, "python"
    return blocks[-1][1], "cpp" if blocks[-1][0].strip().lower() in ("cpp", "c++", "cc", "cxx") else "python"


@cache
def sandbox() -> Sandbox:
    """The one that works here. Raises RuntimeError, with the remedy, where none does."""
    return open_sandbox("auto")


def livecodebench(
    completions: Sequence[str], tests: Sequence[Any], function: Sequence[str | None], **columns: Any
) -> list[float]:  # fmt: skip
    """1 for a completion whose last fenced block passes all tests, else 0."""
    return [float(_solves(*one)) for one in zip(completions, tests, function)]


def _solves(completion: str, tests: Any, function: str | None) -> bool:
    if not tests:
        raise ValueError("there are no tests")
    source, _ = block(completion)
    if source is None:
        return False
    future = "".join(_FUTURE.findall(source))
    # The prelude has names of its own, such as operator's add: what is called must be the solution's.
    chosen = f"\n{function} = Solution().{function}\n" if function and "class Solution" in source else ""
    if function and function not in source:
        return False
    program = Program(f"{future}\n{PRELUDE}{_FUTURE.sub('', source)}{chosen}", "python", function)
    cases = [Case(arguments=test["arguments"]) if function else Case(stdin=test["input"]) for test in tests]
    with contextlib.closing(sandbox().stream(program, cases, LIVECODEBENCH)) as outcomes:
        return all(_right(test, outcome) for test, outcome in zip(tests, outcomes))


def _right(test: Any, outcome: Outcome) -> bool:
    if outcome.status != "ok":
        return False
    return same_value(outcome.value, test["value"]) if "value" in test else same_stdout(outcome.stdout, test["output"])


def codeforces(
    completions: Sequence[str], tests: Sequence[Any], checker: Sequence[str | None], seconds: Sequence[float],
    memory: Sequence[float], **columns: Any,
) -> list[float]:  # fmt: skip
    """1 for a completion whose last fenced block, C++ or Python, passes all tests within the problem's limits, else 0.
    checker: a Python program that is given the names of input, expected output and output, and prints 1 for a right one.
    seconds, memory: a test's, in CPU seconds and MB.
    """
    return [float(_accepted(*one)) for one in zip(completions, tests, checker, seconds, memory)]


def _accepted(completion: str, tests: Any, checker: str | None, seconds: float, memory: float) -> bool:
    if not tests:
        raise ValueError("there are no tests")
    source, language = block(completion)
    if source is None:
        return False
    limits = Limits(seconds=seconds, memory=max(16 << 20, int(memory * 1e6)))
    said = []
    program = Program(source, language)
    with contextlib.closing(sandbox().stream(program, [Case(stdin=test["input"]) for test in tests], limits)) as outcomes:
        for test, outcome in zip(tests, outcomes):
            if outcome.status != "ok" or (checker is None and not same_stdout(outcome.stdout, test["output"])):
                return False
            said.append(outcome.stdout)
    return checker is None or _checked(checker, tests, said)


def _checked(checker: str, tests: Any, said: Sequence[str]) -> bool:
    names = ("input.txt", "expected.txt", "output.txt")
    cases = [
        Case("", words=names, files=dict(zip(names, (test["input"], test["output"], output))))
        for test, output in zip(tests, said)
    ]
    with contextlib.closing(sandbox().stream(Program(checker), cases, CHECKER)) as outcomes:
        for outcome in outcomes:
            if outcome.status != "ok":
                raise RuntimeError(f"the problem's checker failed: {outcome.status} {outcome.detail:.200}")
            if not _is_one(outcome.stdout):
                return False
    return True


def _is_one(text: str) -> bool:
    try:
        return float(text.split()[-1]) >= 1.0
    except (IndexError, ValueError):
        return False


def humaneval(
    completions: Sequence[str], start: Sequence[str], function: Sequence[str], canonical: Sequence[str],
    check: Sequence[str], **columns: Any,
) -> list[float]:  # fmt: skip
    """1 for a completion whose function passes the problem's checks, else 0. start: what is to be completed. canonical: how
    it is; it shows with which arguments the checks call.
    """
    return [float(_completes(*one)) for one in zip(completions, start, function, canonical, check)]


def _completes(completion: str, start: str, function: str, canonical: str, check: str) -> bool:
    calls = called(start, function, canonical, check)
    fenced, _ = block(completion)
    text = completion if fenced is None else fenced
    whole = re.search(rf"^(?:async\s+)?def\s+{re.escape(function)}\b", text, re.MULTILINE)
    source = f"{start}\n{text}" if whole else f"{start}{text}"
    values = []
    cases = [Case(arguments=arguments) for arguments in calls]
    with contextlib.closing(sandbox().stream(Program(source, "python", function), cases, HUMANEVAL)) as outcomes:
        for outcome in outcomes:
            if outcome.status != "ok":
                return False
            values.append(outcome.value)
    program = Program(start + canonical + "\n" + check + REPLAYED, "python", "verdict__")
    (verdict,) = sandbox().run(program, [Case(arguments=[values])], CHECKER)
    return verdict.status == "ok" and verdict.value is True


RECORDED = """

def calls__():
    import copy, random
    random.seed(0)
    calls = []

    def record(*arguments):
        calls.append(copy.deepcopy(list(arguments)))
        return {function}(*arguments)

    check(record)
    return calls
"""
REPLAYED = """

def verdict__(values):
    import random
    random.seed(0)
    left = iter(values)
    check(lambda *arguments: next(left))
    return True
"""


@cache
def called(start: str, function: str, canonical: str, check: str) -> list[list[Any]]:
    """The arguments with which a problem's checks call its function. Raises RuntimeError where the canonical solution itself
    does not pass.
    """
    program = Program(start + canonical + "\n" + check + RECORDED.format(function=function), "python", "calls__")
    (outcome,) = sandbox().run(program, [Case(arguments=[])], CHECKER)
    if outcome.status != "ok" or not isinstance(outcome.value, list) or not outcome.value:
        raise RuntimeError(f"the canonical solution of {function} does not pass its checks: {outcome.detail:.200}")
    return outcome.value


for _function in (livecodebench, codeforces, humaneval):
    _function.spoken = True  # type: ignore[attr-defined]
