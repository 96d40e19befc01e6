"""Codeforces: problems with official tests in the schema of open-r1/codeforces, and contests with their standings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gspo.config.source_kind import SUFFIXES
from gspo.data.files import rows_of

ASK = (
    "Write a program in C++ or Python that reads standard input and writes standard output. Put the whole of it into one "
    "block that begins with ```cpp or ```python and ends with ```."
)
_NEEDED = ("id", "contest_id", "index", "title", "description")
_MAY_LACK = ("title", "description")


class Unfit(ValueError):
    """A problem of the right schema that cannot be judged here.

    Attributes:
        reason: Why, as used in the counts.
    """

    def __init__(self, row: Mapping[str, Any], reason: str) -> None:
        super().__init__(f"problem {row['id']} cannot be judged: {reason}")
        self.reason = reason


def codeforces_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A problem as prompt, id, tests, checker (a Python program; None if outputs are compared), limits and place in its
    contest.

    Raises ValueError for another schema, and Unfit for missing or incomplete tests and for input other than standard input.
    """
    for name in _NEEDED:
        if name not in row or (row[name] in (None, "") and name not in _MAY_LACK):
            raise ValueError(f"there is no {name}; the columns are {', '.join(map(str, row))}")
        if row[name] in (None, ""):
            raise Unfit(row, f"no {name}")
    tests = _list(row, "official_tests")
    if not tests:
        raise Unfit(row, "no official_tests")
    if row.get("official_tests_complete") is not True:
        raise Unfit(row, "official_tests_complete is not true")  # wrong programs would pass
    if row.get("interaction_format"):
        raise Unfit(row, "interactive")
    if row.get("input_mode") not in (None, "", "stdio"):
        raise Unfit(row, f"input_mode = {row['input_mode']!r:.20}")
    made = []
    for i, test in enumerate(tests):
        match test:
            case {"input": str(given), "output": str(wanted)}:
                made.append({"input": given, "output": wanted})
            case _:
                raise ValueError(f"problem {row['id']}, test {i}: expected input and output, both text")
    return {
        "prompt": _prompt(row),
        "id": str(row["id"]),
        "tests": made,
        "checker": row.get("generated_checker") or None,
        "seconds": _positive(row, "time_limit", 2.0),
        "memory": _positive(row, "memory_limit", 256.0),
        "contest": str(row["contest_id"]),
        "index": str(row["index"]),
        "rating": row.get("rating"),
        "title": str(row["title"]),
    }


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f"problem {row['id']}: {name} = {value!r:.40}: expected a list")
    return value or []


def _positive(row: Mapping[str, Any], name: str, usual: float) -> float:
    value = row.get(name)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ValueError(f"problem {row['id']}: {name} = {value!r}: expected a number above 0")
    return float(value)


def _prompt(row: Mapping[str, Any]) -> str:
    parts = [f"# {row['title']}", str(row["description"])]
    sections = ("Input", "input_format"), ("Output", "output_format")
    parts += [f"## {name}\n\n{row[key]}" for name, key in sections if row.get(key)]
    for example in _list(row, "examples"):
        if isinstance(example, Mapping):
            shown = (f"{name}:\n\n```\n{example.get(name.lower(), '')}\n```" for name in ("Input", "Output"))
            parts.append("\n\n".join(("## Example", *shown)))
    if row.get("note"):
        parts.append(f"## Note\n\n{row['note']}")
    limits = f"{_positive(row, 'time_limit', 2.0):g} seconds, {_positive(row, 'memory_limit', 256.0):g} MB"
    parts.append(f"Limits: {limits}. {ASK}")
    return "\n\n".join(parts)


def contests_of(path: Path) -> list[dict[str, Any]]:
    """The contests of a file, each with id, points per problem, and the rated humans as (prior rating, points, penalty).

    A row has the fields of Codeforces' own interface: `contest_id`, `problems` (index, points), `standings` (handle or
    party, points, penalty) and `rating_changes` (handle, oldRating). Raises ValueError for standings that are empty or do
    not match the ratings.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: files can be {', '.join(SUFFIXES)}")
    contests: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows_of(path, str(path))):
        try:
            made = _contest(row)
        except ValueError as error:
            raise ValueError(f"{path}, contest {number}: {error}; mend the contest, or leave it out") from None
        if made["id"] in contests:
            raise ValueError(f"{path}: contest {made['id']} comes twice: leave one out")
        contests[made["id"]] = made
    if not contests:
        raise ValueError(f"{path}: there are no contests in the file; give one with standings")
    return list(contests.values())


def _contest(row: Mapping[str, Any]) -> dict[str, Any]:
    name = row.get("contest_id")
    if name in (None, ""):
        raise ValueError(f"there is no contest_id; the columns are {', '.join(map(str, row))}")
    problems, standings, changes = (row.get(key) for key in ("problems", "standings", "rating_changes"))
    for key, value in (("problems", problems), ("standings", standings), ("rating_changes", changes)):
        if not isinstance(value, list) or not value:
            raise ValueError(f"{name}: {key} is empty or no list")
    points = {str(_get(one, "index")): _number(_get(one, "points", 0) or 0, "points") for one in problems or ()}
    ratings = {str(_get(one, "handle")): _number(_get(one, "oldRating"), "oldRating") for one in changes or ()}
    humans = {}
    for line in standings or ():
        handle = _handle(line)
        if handle in ratings and handle not in humans:
            penalty = _number(_get(line, "penalty", 0) or 0, "penalty")
            humans[handle] = (ratings[handle], _number(_get(line, "points"), "points"), penalty)
    absent = [handle for handle in ratings if handle not in humans]
    if absent:
        raise ValueError(
            f"{name}: {len(absent)} of {len(ratings)} who were rated are not in the standings, such as {absent[0]}"
        )
    return {"id": str(name), "points": points, "humans": list(humans.values())}


def _get(row: Any, key: str, *usual: Any) -> Any:
    if isinstance(row, Mapping) and (key in row or usual):
        return row.get(key, *usual)
    raise ValueError(f"there is no {key} in {row!r:.60}")


def _handle(line: Any) -> str:
    if isinstance(line, Mapping) and "handle" in line:
        return str(line["handle"])
    match _get(line, "party"):
        case {"members": [first, *_]}:
            return str(_get(first, "handle"))
    raise ValueError(f"there is nobody in {line!r:.60}")


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e15 < value < 1e15:  # rejects NaN too
        raise ValueError(f"{name} = {value!r:.40}: expected a number")
    return float(value)
