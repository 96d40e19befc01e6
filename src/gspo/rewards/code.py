"""Whether what a program said is right. Everything here is compared outside of the sandbox, as plain data."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.MULTILINE | re.DOTALL)
DIGITS = 10_000
"""Characters of the longest number that is compared as one."""


def program_of(text: str) -> str | None:
    """The code in the last complete fenced block of a text; None without one."""
    blocks = FENCE.findall(text)
    return blocks[-1][1] if blocks else None


def same_stdout(output: str, expected: str) -> bool:
    """Whether a program's output is the expected one: the same number of lines, each the same text without the blanks
    around it, or the same decimal numbers one by one.
    """
    lines, wanted = output.strip().split("\n"), expected.strip().split("\n")
    return len(lines) == len(wanted) and all(map(_same_line, lines, wanted))


def _same_line(line: str, wanted: str) -> bool:
    if line.strip() == wanted.strip():
        return True
    words, numbers = line.split(), wanted.split()
    return len(words) == len(numbers) > 0 and all(map(_same_number, words, numbers))


def _same_number(word: str, wanted: str) -> bool:
    if max(len(word), len(wanted)) > DIGITS:
        return False
    try:
        return Decimal(word) == Decimal(wanted)
    except InvalidOperation:  # no number, or a signaling one
        return False


def same_value(value: Any, expected: Any) -> bool:
    """Whether a function returned what is expected. Both are plain data, so that `==` is Python's own. A tuple at the top
    counts as a list.
    """
    try:
        return bool(_listed(value) == _listed(expected))
    except RecursionError:
        return False


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
