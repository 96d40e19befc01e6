"""LiveCodeBench: contest problems with hidden tests, in the schema of code_generation_lite (arXiv 2403.07974)."""

from __future__ import annotations

import base64
import datetime
import json
import pickletools
import re
import zlib
from collections.abc import Mapping
from typing import Any

RELEASES = {"v1": 400, "v2": 511, "v3": 612, "v4": 713, "v5": 880, "v6": 1055}
"""Number of problems of each release; each release begins with those of the previous one."""
RELEASE, WINDOW = "v5", "2024-10..2025-02"
"""Default release and window: the contest months that the sources on GSPO report."""
WITH_STARTER = "Write a Python solution with this starter code:"
WHOLE = "Write a Python program that reads the input from standard input and writes the answer to standard output."
BLOCK = "Put the whole code into one block that begins with ```python and ends with ```."
"""Instructions added to problems."""
_NEEDED = ("question_content", "question_id", "contest_date", "public_test_cases", "private_test_cases")
_AROUND = {"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}
"""What stands around the text in a pickle of a text."""
_END = r"\d{4}-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01]))?"
_WINDOW = re.compile(rf"({_END})\.\.({_END})")


def lcb_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A problem as prompt, id, tests (public ones first), function (None for programs that read standard input) and date.
    Raises ValueError for another schema, hidden tests that are not plain data, and a problem without tests.
    """
    missing = [name for name in _NEEDED if row.get(name) in (None, "")]
    if missing:
        raise ValueError(f"there is no {missing[0]}; the columns are {', '.join(map(str, row))}")
    function = _json(row.get("metadata") or "{}", "metadata").get("func_name")
    public = _tests(_json(row["public_test_cases"], "public_test_cases"), "public_test_cases")
    hidden = _tests(private(row["private_test_cases"]), "private_test_cases")
    tests = public + hidden
    if not tests:
        raise ValueError("there are no tests in public_test_cases and private_test_cases")
    if {"value" in test for test in tests} != {bool(function)}:
        raise ValueError(f"the function is {function!r}, which does not go with the tests' types")
    return {
        "prompt": _prompt(row["question_content"], row.get("starter_code") or ""),
        "id": str(row["question_id"]),
        "tests": tests,
        "function": function,
        "title": row.get("question_title") or "",
        "difficulty": row.get("difficulty") or "",
        "date": _date(row["contest_date"]),
    }


def private(cell: Any) -> Any:
    """Parses hidden tests: JSON, or base64(zlib(pickle(JSON))). A pickle may hold nothing but text. Raises ValueError."""
    if not isinstance(cell, str) or cell.lstrip().startswith("["):
        return _json(cell, "private_test_cases")
    try:
        data = zlib.decompress(base64.b64decode(cell, validate=True))
    except (ValueError, zlib.error) as error:
        raise ValueError(f"private_test_cases is neither JSON nor base64 of zlib: {error}") from None
    return _json(_pickled_text(data), "private_test_cases")


def _pickled_text(data: bytes) -> str:
    """The text in a pickle, which is parsed but never unpickled: unpickling executes whatever it contains."""
    try:
        found = [argument for code, argument, _ in pickletools.genops(data) if code.name not in _AROUND]
    except ValueError as error:
        raise ValueError(f"private_test_cases is no pickle: {error}") from None
    match found:
        case [str(text)]:
            return text
    raise ValueError("private_test_cases is a pickle of more than one text, and nothing else is read")


def _json(cell: Any, name: str) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell)
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON: {error}") from None


def _tests(cases: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(cases, list):
        raise ValueError(f"{name} is {type(cases).__name__}; expected a list of tests")
    made: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        match case:
            case {"input": str(given), "output": str(wanted), "testtype": "stdin"}:
                made.append({"input": given, "output": wanted})
            case {"input": str(given), "output": str(wanted), "testtype": "functional"}:
                lines = [_json(line, f"{name}, test {number}, input") for line in given.split("\n")]
                made.append({"arguments": lines, "value": _json(wanted, f"{name}, test {number}, output")})
            case _:
                raise ValueError(f"{name}, test {number}: expected input, output and testtype (stdin or functional)")
    return made


def _date(cell: Any) -> str:
    try:
        return datetime.datetime.fromisoformat(str(cell)).date().isoformat()
    except ValueError:
        raise ValueError(f"contest_date is {cell!r:.40}; expected a date such as 2024-10-05T00:00:00") from None


def _prompt(question: str, starter: str) -> str:
    how = f"{WITH_STARTER}\n\n```python\n{starter.rstrip()}\n```\n\n" if starter.strip() else f"{WHOLE} "
    return f"{question.strip()}\n\n{how}{BLOCK}"


def lcb_choose(rows: list[dict[str, Any]], release: str | None = None, window: str = WINDOW) -> list[dict[str, Any]]:
    """The problems of a release within a window of contest dates: `FROM..TO`, in months or days, both ends included, or
    `all`. Without a release, those of all rows. Raises ValueError.
    """
    if release is not None:
        if release not in RELEASES:
            raise ValueError(f"release {release!r}: is none of {', '.join(RELEASES)}")
        if len(rows) not in RELEASES.values() or len(rows) < RELEASES[release]:
            raise ValueError(
                f"release {release!r}: it has {RELEASES[release]} problems, and these are {len(rows)}: give the data of "
                "this release or of a later one, whole and in its order; or ask for no release"
            )
        rows = rows[: RELEASES[release]]
    if window == "all":
        return rows
    ends = _WINDOW.fullmatch(window)
    if ends is None:
        raise ValueError(f"window {window!r}: expected FROM..TO, such as 2024-10..2025-02 or 2024-10-01..2025-02-15, or all")
    first, last = ends.groups()  # ISO dates compare as text; of a month only the month is compared
    chosen = [row for row in rows if first <= row["date"][: len(first)] and row["date"][: len(last)] <= last]
    if not chosen:
        dates = sorted(row["date"] for row in rows)
        raise ValueError(f"window {window}: has no problem; choose from {dates[0]} to {dates[-1]} ({len(rows)}), or all")
    return chosen
