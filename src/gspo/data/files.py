"""Reads the rows of a local file: JSON Lines, JSON, CSV or Parquet."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from gspo.config.import_function import describe
from gspo.config.suggestions import nearest
from gspo.config.values import type_of

LARGEST_CELL = 2**31 - 1  # characters per CSV cell; Python's default limit is shorter than many prompts


def rows_of(path: Path, where: str) -> list[dict[str, Any]]:
    """The rows of a file. `where` names it in errors. Raises ValueError with the file, the line and the problem."""
    try:
        if not path.stat().st_size:
            raise ValueError(f"{path}: the file is empty")
        return {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}[path.suffix](path)
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*") if p.exists()] if path.parent.is_dir() else []
        close = nearest(path.name, siblings)
        raise ValueError(f"{where}: there is no such file in {path.parent.resolve()}{close}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text: {error}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None


def _parsed(text: str, path: Path, line: int = 1) -> Any:
    """line: Number of the first line of the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        why = f"{error.msg} (column {error.colno})"
        raise ValueError(f"{path}, line {line + error.lineno - 1}: not valid JSON: {why}") from None
    except ValueError as error:  # a number with too many digits
        raise ValueError(f"{path}, line {line}: not valid JSON: {error}") from None


def _jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            row = _parsed(line.rstrip(), path, number)
            if not isinstance(row, dict):
                raise ValueError(f"{path}, line {number}: expected an object {{...}}, got {line.strip():.40}")
            rows.append(row)
    return rows


def _json(path: Path) -> list[dict[str, Any]]:
    """A list of rows, or JSON Lines, which often use this suffix too."""
    text = path.read_text(encoding="utf-8-sig")
    try:
        rows = _parsed(text, path)
    except ValueError as error:
        if text.lstrip()[:1] == "{" and ": Extra data (" in str(error):  # the first row is whole
            return _jsonl(path)
        raise
    if not isinstance(rows, list):
        names = f" with {', '.join(rows)}" if isinstance(rows, dict) else ""
        raise ValueError(f"{path}: expected a list of rows [{{...}}, ...], got {type_of(rows)}{names:.80}")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: expected an object {{...}}, got {row!r:.40}")
    return rows


def _csv(path: Path) -> list[dict[str, Any]]:
    rows = []
    csv.field_size_limit(LARGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        try:
            names = list(reader.fieldnames or ())
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"{path}, line {reader.line_num}: two columns are called {twice!r}: rename one")
            for row in reader:
                if None in row or None in row.values():
                    raise ValueError(f"{path}, line {reader.line_num}: expected {len(names)} fields, as in the first line")
                rows.append(row)
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num + 1}: not valid CSV: {error}") from None
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, ValueError) as error:  # the second for nanosecond timestamps, which need pandas
        raise ValueError(f"{path}: not a Parquet file that can be read: {describe(error)}") from None
