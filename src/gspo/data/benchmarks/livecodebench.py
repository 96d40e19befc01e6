"""LiveCodeBench: contest problems with hidden tests, in the schema of code_generation_lite (arXiv 2403.07974)."""

from __future__ import annotations

import base64
import binascii
import calendar
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
LARGEST = 256 << 20
"""Maximum bytes of a problem's hidden tests, decompressed."""
_NEEDED = ("question_content", "question_id", "contest_date", "public_test_cases", "private_test_cases")
_TEXT = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_AROUND = {"PROTO", "FRAME", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "STOP"}
_MONTH = re.compile(r"(\d{4})-?(\d{2})(?:-?(\d{2}))?")


def lcb_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A problem as prompt, id, tests (public ones first), function (None for programs that read standard input) and date.

    Raises ValueError for another schema, hidden tests that are not plain data or too large, and a problem without tests.
    """
    missing = [name for name in _NEEDED if row.get(name) in (None, "")]
    if missing:
        raise ValueError(f"there is no {missing[0]}; the columns are {', '.join(map(str, row))}")
    metadata = _json(row.get("metadata") or "{}", "metadata")
    function = metadata.get("func_name") if isinstance(metadata, dict) else None
    if function is not None and not (isinstance(function, str) and function.isidentifier()):
        raise ValueError(f"metadata: func_name = {function!r:.40}: expected the name of a function")
    public = _tests(_json(row["public_test_cases"], "public_test_cases"), "public_test_cases")
    hidden = _tests(private(row["private_test_cases"]), "private_test_cases")
    tests = public + hidden
    if not tests:
        raise ValueError(
            "there are no tests in public_test_cases and private_test_cases: everything would solve the problem"
        )
    kinds = {"value" in test for test in tests}
    if kinds != {bool(function)}:
        raise ValueError(f"the function is {function!r}, which does not go with the tests' types")
    starter = str(row.get("starter_code") or "")
    return {
        "prompt": _prompt(str(row["question_content"]), starter),
        "id": str(row["question_id"]),
        "tests": tests,
        "function": function,
        "title": str(row.get("question_title") or ""),
        "difficulty": str(row.get("difficulty") or ""),
        "platform": str(row.get("platform") or ""),
        "date": _date(row["contest_date"]),
    }


def private(cell: Any) -> Any:
    """Parses hidden tests: JSON, or base64(zlib(pickle(JSON))). A pickle may hold nothing but text. Raises ValueError."""
    if not isinstance(cell, str):
        return cell
    if cell.lstrip()[:1] in ("[", "{"):
        return _json(cell, "private_test_cases")
    try:
        packed = base64.b64decode(cell.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"private_test_cases is neither JSON nor base64: {error}") from None
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, LARGEST)
    except zlib.error as error:
        raise ValueError(f"private_test_cases cannot be decompressed: {error}") from None
    if unpacker.unconsumed_tail:
        raise ValueError(f"private_test_cases has more than {LARGEST >> 20} MiB when it is decompressed")
    return _json(_pickled_text(data), "private_test_cases")


def _pickled_text(data: bytes) -> str:
    """The text in a pickle, which is parsed but never unpickled: unpickling executes whatever it contains, and a few bytes
    may request gigabytes of memory.
    """
    texts: list[Any] = []
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number > 10:
                raise ValueError("it has more than a text needs")
            if opcode.name in _TEXT:
                texts.append(argument)
            elif opcode.name not in _AROUND:
                raise ValueError(f"it has {opcode.name}, and nothing but text is read")
    except ValueError as error:
        raise ValueError(f"private_test_cases is no pickle of text: {error}") from None
    if len(texts) != 1:
        raise ValueError(f"private_test_cases is no pickle of text: it has {len(texts)} in place of one")
    (text,) = texts
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _json(cell: Any, name: str) -> Any:
    if not isinstance(cell, str):
        return cell
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
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


def lcb_choose(rows: list[dict[str, Any]], release: str | None = None, window: str | None = None) -> list[dict[str, Any]]:
    """The problems of a release within a window of contest dates, as `span` reads it, both ends included. Without a release,
    rows that form a whole one are cut down to RELEASE. Raises ValueError for a release that is unknown or that the rows do
    not hold, and for a window without problems.
    """
    if release is not None and release not in RELEASES:
        raise ValueError(f"release {release!r}: is none of {', '.join(RELEASES)}")
    sizes = {count: name for name, count in RELEASES.items()}
    asked = release or RELEASE
    if len(rows) in sizes and len(rows) >= RELEASES[asked]:
        rows = rows[: RELEASES[asked]]
    elif release is not None:
        raise ValueError(
            f"release {release!r}: it has {RELEASES[asked]} problems, and these are {len(rows)}: give the data of this "
            "release or of a later one, whole and in its order; or ask for no release"
        )
    first, last = span(window or WINDOW)
    chosen = [row for row in rows if first <= row["date"] <= last]
    if not chosen:
        dates = sorted(row["date"] for row in rows)
        raise ValueError(
            f"window {window or WINDOW}: has no problem; choose from {dates[0]} to {dates[-1]} ({len(rows)}), or all"
            if dates
            else "there are no problems"
        )
    return chosen


def span(window: str) -> tuple[str, str]:
    """First and last day of a window `FROM..TO`, in months or days, or of `all`. Raises ValueError."""
    if window == "all":
        return "0000-00-00", "9999-99-99"
    ends = re.split(r"\.\.|(?<=^\d{6})-(?=\d{6}$)", window)
    found = [_MONTH.fullmatch(end) for end in ends]
    if len(found) != 2 or found[0] is None or found[1] is None:
        raise ValueError(f"window {window!r}: expected FROM..TO, such as 2024-10..2025-02 or 2024-10-01..2025-02-15, or all")
    (year, month, day), (to_year, to_month, to_day) = found[0].groups(), found[1].groups()
    try:
        begin = datetime.date(int(year), int(month), int(day or 1))
        days = calendar.monthrange(int(to_year), int(to_month))[1]
        end = datetime.date(int(to_year), int(to_month), int(to_day or days))
    except ValueError as error:
        raise ValueError(f"window {window!r}: {error}") from None
    if begin > end:
        raise ValueError(f"window {window!r}: ends before it begins")
    return begin.isoformat(), end.isoformat()
