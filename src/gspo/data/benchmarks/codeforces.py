"""Codeforces: problems with official tests in the schema of open-r1/codeforces, and contests with their standings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gspo.config.import_function import describe
from gspo.config.source_kind import SUFFIXES
from gspo.data.files import rows_of

ASK = (
    "Write a program in C++ or Python that reads standard input and writes standard output. Put the whole of it into one "
    "block that begins with ```cpp or ```python and ends with ```."
)
_NEEDED = ("id", "contest_id", "index")


class Unjudgeable(ValueError):
    """Why a problem of the right schema cannot be judged here."""


def codeforces_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A problem as prompt, id, tests, checker (a Python program; None if outputs are compared), limits and place in its
    contest. Raises ValueError for another schema, and Unjudgeable for what cannot be judged here.
    """
    for name in (*_NEEDED, "title", "description"):
        if name not in row or (row[name] in (None, "") and name in _NEEDED):
            raise ValueError(f"there is no {name}; the columns are {', '.join(map(str, row))}")
    for name in ("title", "description", "official_tests"):
        if not row.get(name):
            raise Unjudgeable(f"no {name}")
    if row.get("official_tests_complete") is not True:
        raise Unjudgeable("official_tests_complete is not true")  # wrong programs would pass
    if row.get("interaction_format"):
        raise Unjudgeable("interactive")
    if row.get("input_mode") not in (None, "", "stdio"):
        raise Unjudgeable(f"input_mode = {row['input_mode']!r:.20}")
    try:
        tests = [{"input": test["input"], "output": test["output"]} for test in row["official_tests"]]
    except (TypeError, KeyError):
        raise ValueError("official_tests: expected a list of tests with input and output") from None
    return {
        "prompt": _prompt(row),
        "id": str(row["id"]),
        "tests": tests,
        "checker": row.get("generated_checker") or None,
        "seconds": _limit(row, "time_limit", 2.0),
        "memory": _limit(row, "memory_limit", 256.0),
        "contest": str(row["contest_id"]),
        "index": str(row["index"]),
        "rating": row.get("rating"),
        "title": str(row["title"]),
    }


def _limit(row: Mapping[str, Any], name: str, usual: float) -> float:
    value = usual if row.get(name) is None else row[name]
    if not isinstance(value, (int, float)) or not 0 < value < 1e6:
        raise ValueError(f"{name} = {value!r}: expected a number above 0")
    return float(value)


def _prompt(row: Mapping[str, Any]) -> str:
    parts = [f"# {row['title']}", str(row["description"])]
    sections = ("Input", "input_format"), ("Output", "output_format")
    parts += [f"## {name}\n\n{row[key]}" for name, key in sections if row.get(key)]
    for example in row.get("examples") or ():
        shown = (f"{name}:\n\n```\n{example.get(name.lower(), '')}\n```" for name in ("Input", "Output"))
        parts.append("\n\n".join(("## Example", *shown)))
    if row.get("note"):
        parts.append(f"## Note\n\n{row['note']}")
    limits = f"{_limit(row, 'time_limit', 2.0):g} seconds, {_limit(row, 'memory_limit', 256.0):g} MB"
    parts.append(f"Limits: {limits}. {ASK}")
    return "\n\n".join(parts)


class Human(NamedTuple):
    """A rated participant: the rating before the contest, and points and penalty from the standings."""

    rating: float
    points: float
    penalty: float = 0.0


@dataclass(frozen=True)
class Contest:
    """A contest. `points`: of each problem, by its index such as "A"; all 0 if problems only count as solved or not."""

    id: str
    points: dict[str, float]
    humans: tuple[Human, ...]


def contests_of(path: Path, where: str) -> list[Contest]:
    """The contests of a file, with those humans who were rated. `where` names it in errors. A row has the fields of
    Codeforces' own interface: `contest_id`, `problems` (index, points), `standings` (handle or party, points, penalty) and
    `rating_changes` (handle, oldRating). Raises ValueError for others, and for standings that do not match the ratings.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{where}: files can be {', '.join(SUFFIXES)}")
    contests: dict[str, Contest] = {}
    for number, row in enumerate(rows_of(path, where)):
        try:
            contest = _contest(row)
        except ValueError as error:
            raise ValueError(f"{where}, contest {number}: {error}; correct the contest, or leave it out") from None
        if contest.id in contests:
            raise ValueError(f"{where}: contest {contest.id} comes twice: leave one out")
        contests[contest.id] = contest
    return list(contests.values())


def _contest(row: Mapping[str, Any]) -> Contest:
    for key in ("contest_id", "problems", "standings", "rating_changes"):
        if not row.get(key):
            raise ValueError(f"{key} is empty; the columns are {', '.join(row)}")
    name, humans = str(row["contest_id"]), {}
    try:
        points = {str(problem["index"]): float(problem.get("points") or 0) for problem in row["problems"]}
        ratings = {str(change["handle"]): float(change["oldRating"]) for change in row["rating_changes"]}
        for line in row["standings"]:
            handle = str(line["handle"] if "handle" in line else line["party"]["members"][0]["handle"])
            if handle in ratings and handle not in humans:
                humans[handle] = Human(ratings[handle], float(line["points"]), float(line.get("penalty") or 0))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{name}: has not the fields of Codeforces' interface: {describe(error)}") from None
    absent = [handle for handle in ratings if handle not in humans]
    if absent:
        raise ValueError(
            f"{name}: {len(absent)} of {len(ratings)} who were rated are not in the standings, such as {absent[0]}"
        )
    return Contest(name, points, tuple(humans.values()))
