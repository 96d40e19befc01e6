"""The columns of a row that settings name, nested ones by a dotted name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gspo.config.source_kind import BENCHMARK
from gspo.config.suggestions import nearest
from gspo.config.values import type_of


def cell(row: Mapping[str, Any], column: str, key: str, what: str = "") -> Any:
    """The value in a column of a row. Raises ValueError, with the key that names the column and `what` it holds."""
    if not isinstance(row, Mapping):
        raise ValueError(f'is {type_of(row)}, expected a dict of columns, such as {{"prompt": "..."}}')
    if (found := value_in(row, column, row)) is row:
        names = list(_names(row))
        remedy = f"set {key} to one of: {', '.join(names)}" if names else "every row needs it"
        raise ValueError(f"there is no column {column!r}{what}{nearest(column, names)}; {remedy}")
    return found


def value_in(row: Mapping[str, Any], column: str, default: Any = None) -> Any:
    """The value in a column of a row, or `default`. `a.b` is that of the key `b` in the column `a`, unless a column has that
    name.
    """
    if column in row:
        return row[column]
    for at in (i for i, character in enumerate(column) if character == "."):
        nested = row.get(column[:at])
        if isinstance(nested, Mapping) and (found := value_in(nested, column[at + 1 :], row)) is not row:
            return found
    return default


def answer_column(source: str, column: str) -> str:
    """The column with the right answer in rows of this source. column: reward.answer_column, which is not for benchmarks."""
    return "answer" if source.startswith(BENCHMARK) else column


def _names(row: Mapping[Any, Any]) -> Iterator[str]:
    """The columns of a row, and the keys in nested ones."""
    for name, value in row.items():
        yield str(name)
        if isinstance(value, Mapping):
            yield from (f"{name}.{inner}" for inner in _names(value))


def judged_by(row: Mapping[str, Any], column: str, key: str, source: str) -> Any:
    """What a reward compares completions with in a row of this source. Raises ValueError, with the configuration key, if the
    column is missing.
    """
    column = answer_column(source, column) if key == "reward.answer_column" else column
    return cell(row, column, key, f" with the {'tests' if key == 'code.tests_column' else 'right answer'}")
