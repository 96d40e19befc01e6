"""The table of benchmarks by name, and how their rows are read."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gspo.config import source_kind
from gspo.config.suggestions import nearest
from gspo.data.benchmarks import aime, codeforces, humaneval, livecodebench

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]
READS = ("data", "split", "name")
"""Options of every benchmark: where its rows are, in place of its dataset; split and configuration of a dataset."""


@dataclass(frozen=True)
class Benchmark:
    """What is known of a benchmark before it is read.

    Attributes:
        source: Its dataset on the Hugging Face Hub, with `split` and `config`, which may contain options in braces.
        row: Converts a row of the dataset, with its number, to a row of ours.
        reward: Name of the reward that scores its replies.
        samples: Customary number of replies per problem.
        tokens: Maximum reply length, unless a preset sets another.
        usual: Defaults of the options of `choose`.
        packaged: Returns the rows, if a package ships them.
        choose: Selects rows by the benchmark's own options, which are its arguments.
        added: Texts that `row` adds to the problems.
    """

    title: str
    source: str
    split: str
    row: Callable[[Mapping[str, Any], int], dict[str, Any]]
    reward: str
    samples: int
    tokens: int | None = None
    config: str | None = None
    usual: Mapping[str, str] = field(default_factory=dict)
    packaged: Callable[[], Rows] | None = None
    choose: Callable[..., Rows] = lambda rows: rows
    added: tuple[str, ...] = (aime.ASK,)


BENCHMARKS = {
    "aime24": Benchmark("AIME'24", "HuggingFaceH4/aime_2024", "train", aime.aime_row, "math", 32, 38_912),
    "aime25": Benchmark("AIME'25", "yentinglin/aime_2025", "train", aime.aime_row, "math", 32, 38_912),
    "livecodebench": Benchmark(
        "LiveCodeBench", "lighteval/code_generation_lite", "test", livecodebench.lcb_row,
        "gspo.rewards.programs:livecodebench", 8, config="release_{release}",
        choose=livecodebench.lcb_choose, usual={"release": livecodebench.RELEASE, "window": livecodebench.WINDOW},
        added=(livecodebench.WITH_STARTER, livecodebench.WHOLE, livecodebench.BLOCK),
    ),
    "codeforces": Benchmark(
        "Codeforces", "open-r1/codeforces", "test", codeforces.codeforces_row, "gspo.rewards.programs:codeforces", 8,
        added=(codeforces.ASK,),
    ),
    "humaneval": Benchmark(
        "HumanEval", "", "test", humaneval.humaneval_row, "gspo.rewards.programs:humaneval", 1, packaged=humaneval.packaged,
        added=(humaneval.ASK,),
    ),
}  # fmt: skip
ANSWERS = Benchmark("problems with answers", "", "train", aime.answer_row, "math", 1)
"""A file of problems and answers that is not a known benchmark."""


def left_out(counts: Mapping[str, int]) -> str:
    """Text that says how many problems are left out, and why."""
    total = sum(counts.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in counts.items())
    return f"{total} problem{'s' * (total != 1)} left out ({reasons})"


def named(name: str) -> Benchmark:
    """The benchmark of that name, or ANSWERS for a file. Raises ValueError for an unknown name."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if source_kind.kind(name) == "file":
        return ANSWERS
    known = nearest(name, BENCHMARKS)
    raise ValueError(
        f"benchmark {name!r}: is none of {', '.join(BENCHMARKS)}, and no {', '.join(source_kind.SUFFIXES)} file{known}"
    )


def own_options(name: str) -> list[str]:
    """The options of a benchmark."""
    return [*READS, *(option for option in inspect.signature(named(name).choose).parameters if option != "rows")]


def place(name: str, options: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Where the rows of a benchmark are: its source ("" if a package ships them), split, and arguments for the dataset.
    Raises ValueError for an option that the benchmark does not have.
    """
    one, known = named(name), own_options(name)
    for option in options:
        if option not in known:
            close = nearest(option, known)
            raise ValueError(f"task.config.{option}: benchmark {name} has no such option; it has {', '.join(known)}{close}")
    source = options.get("data") or (name if one is ANSWERS else one.source)
    choices = {"split": source_kind.has_splits(source), "name": source_kind.kind(source) in ("hub", "function")}
    for option, some in choices.items():
        if option in options and not (source and some):
            raise ValueError(f"{option} = {options[option]!r}: {source or 'its package'} has none to choose; leave it out")
    its_own = (one.config or "").format(**{**one.usual, **options}) if source == one.source else ""
    config = options.get("name", its_own)
    return str(source), str(options.get("split", one.split)), {"name": config} if config else {}


def asked(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with which a benchmark was read, defaults included. The release of other data is unknown: no default."""
    elsewhere = options.get("data") or options.get("name")
    usual = {key: value for key, value in named(name).usual.items() if key != "release" or not elsewhere}
    return {**usual, **options}


def made(name: str, raw: Iterable[Mapping[str, Any]], options: Mapping[str, Any], where: str) -> tuple[Rows, Counter[str]]:
    """The rows of a benchmark, from those of its dataset, whose name for errors is `where`; and how many cannot be judged
    and are left out, by reason. Warns of these. Raises ValueError for a row of another schema, and if no row is left.
    """
    one = named(name)
    rows: list[dict[str, Any]] = []
    numbers: dict[str, int] = {}
    unjudgeable: Counter[str] = Counter()
    for number, cells in enumerate(raw):
        try:
            row = one.row(cells, number)
        except codeforces.Unjudgeable as error:
            unjudgeable[str(error)] += 1
            continue
        except ValueError as error:
            remedy = f"leave the row out, or name other data with the columns of {name}"
            raise ValueError(f"{where}, row {number}: {error}; {remedy}") from None
        if row["id"] in numbers:
            raise ValueError(
                f"{where}: rows {numbers[row['id']]} and {number} have the same id {row['id']!r}: leave one out"
            )
        numbers[row["id"]] = number
        rows.append(row)
    if unjudgeable and not rows:
        raise ValueError(f"{where}: there is no problem that can be judged: {left_out(unjudgeable)}")
    if unjudgeable:
        logger.warning(f"{where}: {left_out(unjudgeable)}, of {len(rows) + unjudgeable.total()}")
    try:
        chosen = one.choose(rows, **{key: value for key, value in options.items() if key not in READS})
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if (different := len({row["prompt"] for row in chosen})) < len(chosen):
        logger.warning(f"{where}: only {different} of {len(chosen)} problems are different, so intervals are too narrow")
    return chosen, unjudgeable


def digest(rows: Rows) -> str:
    """A fingerprint of a benchmark's rows and their order (SHA-256)."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True, default=str).encode()).hexdigest()


def short(name: str) -> str:
    """A benchmark's name for use in a file name: for a file, its name without folder and suffix."""
    return name if name in BENCHMARKS else Path(name).stem
