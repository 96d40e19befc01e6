"""The reward `code`: whether a program gives the expected results. They are compared outside the sandbox, as plain data."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from gspo.config.rewards import CodeConfig
from gspo.config.values import type_of
from gspo.data.columns import value_in
from gspo.sandbox.image import LONGEST, no_compiler
from gspo.sandbox.open import USUAL, Sandbox, open_sandbox
from gspo.sandbox.types import Case, Limits, Outcome, Program
from gspo.sandbox.watch import BACKSTOP

STDIN = ("type", "stdin_stdout"), ("testtype", "stdin")  # a field of a test in Open-R1's and in LiveCodeBench's data
# First word of a fence. C is compiled as C++; a fence without a word may be Python.
CPP = re.compile(r"c|cc|cxx|(?:c\+\+|cpp|g\+\+|gnu\+\+)\w*")
PYTHON = re.compile(r"(?:i?python|py|pypy)[0-9.]*")
_MARKDOWN = MarkdownIt("commonmark").disable("html_block")  # <answer> begins none, so that fences in it are seen
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])


class Block(NamedTuple):
    """A program, and its language as given by its fence."""

    source: str
    language: str


def program_of(text: str) -> Block | None:
    """The last complete fenced block of a Markdown text that says Python or C++, else the last that names no language."""
    unnamed = None
    for token in reversed(_MARKDOWN.parse(f"{text}\n")):
        if token.type != "fence" or token.map is None or token.content.count("\n") != token.map[1] - token.map[0] - 2:
            continue  # not a fence, or never closed
        word = re.match(r"[\s{.\"']*([\w+#.-]*)", token.info)[1].lower()  # type: ignore[index]
        if CPP.fullmatch(word) or PYTHON.fullmatch(word):
            return Block(token.content, "cpp" if CPP.fullmatch(word) else "python")
        unnamed = unnamed or (None if word else Block(token.content, "python"))
    return unnamed


MODULES = (
    "bisect collections copy datetime functools heapq io itertools json math operator random re statistics string sys typing"
)
"""Modules that solutions of functional problems use without importing them: the problems' own sites provide them."""
_FUTURE = re.compile(r"^from __future__ import .*$\n?", re.MULTILINE)
_SOLUTION = re.compile(r"^class Solution\b", re.MULTILINE)
LAST = "from builtins import *\nimport sys\nsys.setrecursionlimit(50000)\n"


def with_imports(source: str, function: str | None) -> str:
    """A program with imports of those MODULES whose names occur in it: importing all would cost more than a test itself.
    function: The one that is called, which may be a method of Solution.
    """
    words = set(re.findall(r"\w+", source))
    used = [name for name in reversed(MODULES.split()) if name in words or words & _public(name)]
    stars = "".join(f"from {name} import *\n" for name in used)
    prelude = stars + "".join(f"import {name}\n" for name in used) + LAST  # `copy` must be the module, not copy.copy
    # The imports define names such as operator.add, but the function called must be the solution's.
    chosen = f"\n{function} = Solution().{function}\n" if function and _SOLUTION.search(source) else ""
    return f"{''.join(_FUTURE.findall(source))}\n{prelude}{_FUTURE.sub('', source)}{chosen}"


@cache
def _public(name: str) -> frozenset[str]:
    module = importlib.import_module(name)
    return frozenset(getattr(module, "__all__", None) or [one for one in dir(module) if not one.startswith("_")])


def same_stdout(output: str, expected: str) -> bool:
    """Whether each line of a program's output is the expected one, but for blanks around it or its form of numbers."""
    lines, wanted = output.strip().split("\n"), expected.strip().split("\n")
    return len(lines) == len(wanted) and all(map(_same_line, lines, wanted))


def _same_line(line: str, wanted: str) -> bool:
    words, numbers = line.split(), wanted.split()
    return line.strip() == wanted.strip() or (len(words) == len(numbers) > 0 and all(map(same_number, words, numbers)))


def same_number(word: str, wanted: str) -> bool:
    """Whether two words are the same decimal number."""
    try:
        return Decimal(word) == Decimal(wanted)
    except InvalidOperation:  # not a number, or a signaling NaN
        return False


@dataclass(frozen=True)
class CodeTest:
    """A test of a program and its expected result, text or plain data, which stays outside the sandbox."""

    case: Case
    expected: Any

    def passed(self, outcome: Outcome) -> bool:
        """Whether the program passed. Of values, plain data on both sides, a tuple at the top level counts as a list."""
        if outcome.status != "ok":
            return False
        if self.case.arguments is None:
            return same_stdout(outcome.stdout, self.expected)
        value, expected = (list(x) if isinstance(x, tuple) else x for x in (outcome.value, self.expected))
        return bool(value == expected)


def tests_of(columns: Mapping[str, Any], column: str) -> list[CodeTest]:
    """The tests in a column. Raises ValueError if they are invalid or there are none."""
    cell = value_in(columns, column)
    try:
        rows = json.loads(cell) if isinstance(cell, str) else cell
    except (ValueError, RecursionError) as error:
        raise ValueError(f"column {column!r} is no JSON: {error}") from None
    if isinstance(rows, Mapping):
        rows = _from_columns(rows, f"column {column!r}")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"column {column!r} holds {type_of(rows)} in place of a list of tests, or an empty one")
    return [_test(row, f"column {column!r}, test {i + 1}") for i, row in enumerate(rows)]


def _from_columns(table: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """The tests of a table of columns, such as {"inputs": [...], "outputs": [...]}. Raises ValueError if it is none."""
    columns = {name: cells for name, cells in table.items() if cells is not None}
    for name, cells in columns.items():
        if not isinstance(cells, list):
            raise ValueError(
                f"{where}: {name!r} holds {type_of(cells)} in place of a list with an entry for each test: put a single "
                "test into a list, and the name of a function into the column that code.function_column names"
            )
    if len({*map(len, columns.values())}) > 1:
        sizes = ", ".join(f"{name!r} {len(cells)}" for name, cells in columns.items())
        raise ValueError(f"{where}: the lists in it must have an entry for each test, and have different lengths: {sizes}")
    names = [{"inputs": "input", "outputs": "output"}.get(name, name) for name in columns]
    return [dict(zip(names, cells)) for cells in zip(*columns.values())]


def _test(row: Any, where: str) -> CodeTest:
    match row:
        case {"input": str(entry), "output": str(expected), **others} if not _more(others):
            return CodeTest(Case(stdin=entry), expected)
        case {"arguments": [*arguments], "value": expected, **others} if not _more(others):
            return CodeTest(Case(arguments=arguments), expected)
    more = _more(row) if isinstance(row, Mapping) else []
    names = ", ".join(name for name in more if name not in ("input", "output", "arguments", "value"))
    expected = '{"input": text, "output": text} or {"arguments": [...], "value": ...}'
    raise ValueError(f"{where}: expected {expected}{', not with ' * bool(names)}{names}")


def _more(fields: Mapping[Any, Any]) -> list[str]:
    """The fields of a test that say more than that a program reads standard input: tables give every test all fields."""
    return [
        name for name, value in fields.items() if value not in (None, {"func_name": None}) and (name, value) not in STDIN
    ]


def opened(config: CodeConfig, compiles: str = "") -> tuple[Sandbox, str]:
    """The sandbox of `code.sandbox`, and a notice for the run to show. Raises RuntimeError if there is none, or no compiler
    for what `compiles`.
    """
    sandbox = open_sandbox(config.sandbox)  # type: ignore[arg-type]
    if compiles:
        try:
            sandbox.image.header()
        except RuntimeError as error:
            raise RuntimeError(f"{compiles}: {error}") from None
    if sandbox.driver == "none":
        return sandbox, 'programs run in no sandbox (code.sandbox = "none"): they may do what this user may do'
    return sandbox, f"programs run in the sandbox {sandbox.driver!r}"


class CodeReward:
    """The reward `code`. Opens its sandbox; raises RuntimeError as `opened` does."""

    def __init__(self, config: CodeConfig) -> None:
        self.config = config
        self.sandbox, self.notice = opened(config, 'code.language = "cpp"' if config.language == "cpp" else "")
        if config.language == "auto" and (problem := no_compiler()):
            self.notice += f"; a completion in C++ will have no reward: {problem}"
        self.limits = Limits(config.cpu_seconds, int(config.memory * 2**30), int(config.max_output_mib * 2**20))

    def __call__(self, completion: str, columns: Mapping[str, Any]) -> float:
        """The score of a completion whose thinking was removed. Raises ValueError for invalid tests, or RuntimeError."""
        tests = tests_of(columns, self.config.tests_column)
        function = function_of(columns, tests, self.config)
        found = program_of(completion)
        if found is None:
            return 0.0
        language = found.language if self.config.language == "auto" else self.config.language
        source = with_imports(found.source, function) if function else found.source
        program = Program(source, language, function)  # type: ignore[arg-type]
        right, left = 0, self.config.total_cpu_seconds
        with contextlib.closing(self.sandbox.stream(program, [test.case for test in tests], self.limits)) as outcomes:
            for test, outcome in zip(tests, outcomes):
                passed = test.passed(outcome)
                right += passed
                left -= self.limits.seconds if outcome.status == "timeout" else outcome.seconds
                if left < 0 or outcome.status == "compile" or (not passed and self.config.score == "all"):
                    break
        return right / len(tests) if self.config.score == "share" else float(right == len(tests))


def function_of(columns: Mapping[str, Any], tests: Sequence[CodeTest], config: CodeConfig) -> str | None:
    """The function that a row's tests call; None for whole programs. Raises ValueError if tests and function mismatch."""
    called = {test.case.arguments is not None for test in tests}
    name = value_in(columns, config.function_column) or None
    if called == {True} and isinstance(name, str):
        if config.language == "cpp":
            raise ValueError('code.language = "cpp": functions are called in Python alone; tests need "input" and "output"')
        return name
    if called == {False}:
        return None
    what = "some tests have arguments and some have not" if len(called) > 1 else f"there is no name of a function ({name!r})"
    raise ValueError(f"code.function_column = {config.function_column!r}: {what}")


def longest(config: CodeConfig) -> float:
    """Wall-clock seconds after which the scoring of one completion must have gone wrong."""
    return BACKSTOP * (LONGEST + config.total_cpu_seconds + config.cpu_seconds + USUAL.compile_seconds + 3)
