"""Scoring of benchmarks whose replies are programs: reward functions that run them in a sandbox.

Expected outputs stay outside the sandbox, and a program's results come out as plain data. HumanEval's checks and Codeforces'
checkers run in a second sandbox, after the program has ended.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Generator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

from gspo.config.rewards import PROGRAMS, CodeConfig
from gspo.rewards.code import opened, program_of, same_stdout, tests_of, with_imports
from gspo.sandbox.open import Sandbox
from gspo.sandbox.types import Case, Limits, Outcome, Program

Strings = Sequence[str]
Floats = Sequence[float]
LIVECODEBENCH = Limits(seconds=6.0, memory=4 << 30)
HUMANEVAL = Limits(seconds=3.0)
CHECKER = Limits(seconds=10.0)
PATIENCE = 3600.0  # seconds after which the scoring of one completion must have gone wrong: its tests have their own limits
COMPILED = "codeforces"  # the reward that also accepts C++


class Programs:
    """The rewards of program benchmarks, whose programs run in the sandbox configured by [code]. `sandbox`, and the `notice`
    about it, raise RuntimeError, with the remedy, if there is none, or no compiler for one of `rewards`.
    """

    def __init__(self, config: CodeConfig, rewards: Sequence[str] = ()) -> None:
        self.config, self.rewards = config, [name.rpartition(":")[2] for name in rewards]

    sandbox = property(lambda self: self._opened[0])
    notice = property(lambda self: self._opened[1])

    @cached_property
    def _opened(self) -> tuple[Sandbox, str]:
        return opened(self.config, f"the reward {COMPILED}" if COMPILED in self.rewards else "")

    def livecodebench(self, completions: Strings, tests: Sequence[Any], function: Sequence[str | None]) -> list[float]:
        """1 for a completion whose last fenced block passes all tests, else 0."""
        return [float(_solves(self.sandbox, *one)) for one in zip(completions, tests, function)]

    def codeforces(
        self, completions: Strings, tests: Sequence[Any], checker: Sequence[str | None], seconds: Floats, memory: Floats
    ) -> list[float]:
        """1 for a completion whose last fenced block, C++ or Python, passes all tests within CPU `seconds` and `memory` (MB)
        per test, else 0. A checker is a Python program that gets the file names of input, expected output and output, and
        prints 1 for a correct output.
        """
        return [float(_accepted(self.sandbox, *one)) for one in zip(completions, tests, checker, seconds, memory)]

    def humaneval(
        self, completions: Strings, start: Strings, function: Strings, canonical: Strings, check: Strings
    ) -> list[float]:
        """1 for a completion of `start` whose function passes the problem's checks, else 0. The canonical completion shows
        with which arguments they call it.
        """
        return [float(_completes(self.sandbox, *one)) for one in zip(completions, start, function, canonical, check)]


def _solves(sandbox: Sandbox, completion: str, cell: Any, function: str | None) -> bool:
    tests = tests_of({"tests": cell}, "tests")
    found = program_of(completion)
    if found is None or (function and function not in found.source):
        return False
    program = Program(with_imports(found.source, function), "python", function)
    with contextlib.closing(sandbox.stream(program, [test.case for test in tests], LIVECODEBENCH)) as outcomes:
        return all(test.passed(outcome) for test, outcome in zip(tests, outcomes))


def _accepted(sandbox: Sandbox, completion: str, cell: Any, checker: str | None, seconds: float, memory: float) -> bool:
    tests = tests_of({"tests": cell}, "tests")
    found = program_of(completion)
    if found is None:
        return False
    limits = Limits(seconds=seconds, memory=max(16 << 20, int(memory * 1e6)))
    outputs = []
    program = Program(found.source, found.language)  # type: ignore[arg-type]
    with contextlib.closing(sandbox.stream(program, [test.case for test in tests], limits)) as outcomes:
        for test, outcome in zip(tests, outcomes):
            if outcome.status != "ok" or (checker is None and not same_stdout(outcome.stdout, test.expected)):
                return False
            outputs.append((test.case.stdin or "", str(test.expected), outcome.stdout))
    return checker is None or _checked(sandbox, checker, outputs)


def _checked(sandbox: Sandbox, checker: str, outputs: Sequence[tuple[str, str, str]]) -> bool:
    """Whether the checker accepts each output, of (input, expected, output). One on which it fails is wrong; raises
    RuntimeError if it fails on the expected one too.
    """
    with contextlib.closing(_run_checker(sandbox, checker, outputs)) as outcomes:
        for (given, expected, _), outcome in zip(outputs, outcomes):
            if outcome.status != "ok":
                (again,) = _run_checker(sandbox, checker, [(given, expected, expected)])
                if again.status != "ok":
                    raise RuntimeError(f"the problem's checker failed: {again.status} {again.detail:.200}")
                return False
            if not _accepts(outcome.stdout):
                return False
    return True


def _run_checker(sandbox: Sandbox, checker: str, outputs: Sequence[tuple[str, str, str]]) -> Generator[Outcome]:
    names = ("input.txt", "expected.txt", "output.txt")
    return sandbox.stream(Program(checker), [Case("", words=names, files=dict(zip(names, one))) for one in outputs], CHECKER)


def _accepts(text: str) -> bool:
    try:
        return float(text.split()[-1]) >= 1.0
    except (IndexError, ValueError):
        return False


def fault_of(sandbox: Sandbox, row: Mapping[str, Any]) -> tuple[str, str]:
    """Why a problem cannot judge any reply, and its program's own message; ("", "") if it can: its checker must accept the
    expected output of the first test, and its canonical solution must pass its checks.
    """
    if checker := row.get("checker"):
        test = row["tests"][0]
        (outcome,) = _run_checker(sandbox, checker, [(test["input"], test["output"], test["output"])])
        if outcome.status != "ok":
            return "generated_checker fails", outcome.detail
        return ("", "") if _accepts(outcome.stdout) else ("generated_checker refuses the expected output", "")
    if "canonical" in row:
        try:
            called(sandbox, row["start"], row["function"], row["canonical"], row["check"])
        except NoCalls as error:
            return "canonical_solution fails its checks", str(error)
    return "", ""


def _completes(sandbox: Sandbox, completion: str, start: str, function: str, canonical: str, check: str) -> bool:
    calls = called(sandbox, start, function, canonical, check)
    found = program_of(completion)
    text = completion if found is None else found.source
    whole = re.search(rf"^(?:async\s+)?def\s+{re.escape(function)}\b", text, re.MULTILINE)
    source = f"{start}\n{text}" if whole else f"{start}{text}"
    values = []
    cases = [Case(arguments=arguments) for arguments in calls]
    with contextlib.closing(sandbox.stream(Program(source, "python", function), cases, HUMANEVAL)) as outcomes:
        for outcome in outcomes:
            if outcome.status != "ok":
                return False
            values.append(outcome.value)
    program = Program(start + canonical + "\n" + check + REPLAYED, "python", "verdict__")
    (verdict,) = sandbox.run(program, [Case(arguments=[values])], CHECKER)
    return verdict.status == "ok" and verdict.value is True


class NoCalls(RuntimeError):
    """The canonical solution of a problem fails its checks."""


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
def called(sandbox: Sandbox, start: str, function: str, canonical: str, check: str) -> list[list[Any]]:
    """The arguments with which a problem's checks call its function. Raises NoCalls if the canonical solution fails them."""
    program = Program(start + canonical + "\n" + check + RECORDED.format(function=function), "python", "calls__")
    (outcome,) = sandbox.run(program, [Case(arguments=[])], CHECKER)
    if outcome.status != "ok" or not isinstance(outcome.value, list) or not outcome.value:
        raise NoCalls(f"the canonical solution of {function} does not pass its checks: {outcome.detail:.200}")
    return outcome.value


_usual = Programs(CodeConfig())
livecodebench, codeforces, humaneval = _usual.livecodebench, _usual.codeforces, _usual.humaneval
for _function in (Programs.livecodebench, Programs.codeforces, Programs.humaneval):
    setattr(_function, "spoken", True)  # noqa: B010  # a type of function has no such attribute


def columns_of(name: str) -> list[str]:
    """The columns required by the benchmark reward of this name; [] for other rewards."""
    known = {f"{PROGRAMS}{function.__name__}": function for function in (livecodebench, codeforces, humaneval)}
    return list(inspect.signature(known[name]).parameters)[1:] if name in known else []
