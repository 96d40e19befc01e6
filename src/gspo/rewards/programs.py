"""Scoring of benchmarks whose replies are programs, which run in a sandbox.

Expected outputs stay outside the sandbox, and a program's results come out as plain data. HumanEval's checks and Codeforces'
checkers run in a second sandbox, after the program has ended.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Any

from gspo.config.rewards import PROGRAMS, CodeConfig
from gspo.rewards.code import opened, program_of, same_stdout, tests_of, with_imports
from gspo.sandbox.open import Sandbox
from gspo.sandbox.types import Case, Limits, Outcome, Program

LIVECODEBENCH = Limits(seconds=6.0, memory=4 << 30)
HUMANEVAL = Limits(seconds=3.0)
CHECKER = Limits(seconds=10.0)
PATIENCE = 3600.0  # seconds after which the scoring of one completion must have gone wrong: its tests have their own limits
COMPILED = f"{PROGRAMS}codeforces"  # the reward that also accepts C++


def opened_for(reward: str, config: CodeConfig) -> tuple[Sandbox, str]:
    """The sandbox in which a reward of SOLVERS runs programs, and a notice about it. Raises RuntimeError, with the remedy,
    if there is none, or no compiler for this reward.
    """
    return opened(config, "the reward codeforces" if reward == COMPILED else "")


def livecodebench(sandbox: Sandbox, completion: str, tests: Any, function: str | None) -> bool:
    """Whether the last fenced block of a completion passes all tests."""
    cases = tests_of({"tests": tests}, "tests")
    found = program_of(completion)
    if found is None or (function and function not in found.source):
        return False
    program = Program(with_imports(found.source, function), "python", function)
    with contextlib.closing(sandbox.stream(program, [test.case for test in cases], LIVECODEBENCH)) as outcomes:
        return all(test.passed(outcome) for test, outcome in zip(cases, outcomes))


def codeforces(sandbox: Sandbox, completion: str, tests: Any, checker: str | None, seconds: float, memory: float) -> bool:
    """Whether the last fenced block of a completion, C++ or Python, passes all tests.

    Args:
        checker: A Python program that gets the file names of input, expected output and output, and prints 1 for a correct
            output.
        seconds: CPU time per test.
        memory: In MB, per test.
    """
    cases = tests_of({"tests": tests}, "tests")
    found = program_of(completion)
    if found is None:
        return False
    limits = Limits(seconds=seconds, memory=max(16 << 20, int(memory * 1e6)))
    outputs = []
    program = Program(found.source, found.language)  # type: ignore[arg-type]
    with contextlib.closing(sandbox.stream(program, [test.case for test in cases], limits)) as outcomes:
        for test, outcome in zip(cases, outcomes):
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


def humaneval(sandbox: Sandbox, completion: str, start: str, function: str, canonical: str, check: str) -> bool:
    """Whether the function of a completion of `start` passes the problem's checks. The canonical completion shows with which
    arguments they call it.
    """
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


SOLVERS = {f"{PROGRAMS}{solver.__name__}": solver for solver in (livecodebench, codeforces, humaneval)}
"""The rewards of program benchmarks: whether a completion is right, given the columns of its row that they name."""


def columns_of(name: str) -> list[str]:
    """The columns required by the benchmark reward of this name; [] for other rewards."""
    return list(inspect.signature(SOLVERS[name]).parameters)[2:] if name in SOLVERS else []
