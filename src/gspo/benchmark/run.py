"""`gspo eval MODEL --benchmark NAME`: what is missing is sampled and scored, then the figures are made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from rich.console import Console

from gspo.benchmark import page, paired, rating, results
from gspo.benchmark.endpoint import Endpoint
from gspo.benchmark.manifest import begin, manifest
from gspo.benchmark.replies import Key, Lines, Mark, Reply
from gspo.benchmark.sampling import in_tenths, keys, mark, sample
from gspo.benchmark.settings import Options, configured, folder_of
from gspo.build import benchmarks
from gspo.build.given import Given
from gspo.build.scorers import scorer_of
from gspo.config.rewards import runs_programs
from gspo.config.schema import Config
from gspo.data.benchmarks.codeforces import contests_of
from gspo.data.benchmarks.table import named
from gspo.data.prompts import Notice
from gspo.data.sources import read
from gspo.rewards import programs
from gspo.rewards.http_client import Failed, Unreadable, api_key_of
from gspo.runs.open import own_warnings
from gspo.runs.progress import Progress
from gspo.safe import visible
from gspo.types import Prompt

KEY = "OPENAI_API_KEY"
Begin = Callable[[Key], Future[Any]]


def evaluate(options: Options, fields: dict[str, str]) -> int:
    """Runs an evaluation, or goes on with one; prints the figures and writes the page. Returns the exit status.

    Raises ValueError for bad input, before anything is sampled.
    """
    config = configured(options, fields)
    folder = folder_of(options, config)
    key = _key(options)
    rows = [dict(row) for _, row in read(config.task.source, config.task, config.task.split, _words_of(options))]
    samples = config.eval.num_generations
    title = named(options.benchmark).title
    what = manifest(options.benchmark, title, config, rows, samples, options.url, _runs_programs(config))
    if options.against is not None:
        paired.check(what, options.against)
    humans = _contests(options, rows)
    heard: list[Warning] = []
    with scorer_of(config, Given()) as scorer:
        with own_warnings(heard.append):
            prompts = benchmarks.worded(config, rows) if options.url else benchmarks.encoded(config, rows)
            scorer.check(prompts)
            scorer.wait()
        begun = begin(folder, what)
        with Lines(folder / "replies.jsonl", Reply) as replies, Lines(folder / "marks.jsonl", Mark) as marks:
            with Progress(0, title="evaluation") as screen:
                for warning in heard:
                    screen.note(str(warning) if isinstance(warning, Notice) else f"warning: {warning}")
                report = in_tenths(screen.note, screen.phase) if screen.plain else screen.phase
                todo = list(keys(prompts, samples, replies.lines))
                if begun:
                    screen.note(f"{folder}: goes on, {len(prompts) * samples - len(todo)} replies are there")
                if todo:
                    with asking(config, prompts, options, key) as (ask, most):
                        _sampled(replies, todo, ask, most, report)
                ordered = [replies.lines[each] for each in keys(prompts, samples, ())]
                mark(marks, ordered, prompts, scorer, config.reward.correct_at, report)
            table = results.problem_rows(prompts, samples, replies.lines, marks.lines)
            made = results.figures(table)
            rated, words = _rated(humans, prompts, marks.lines, samples, options.as_published)
            results.write(folder, what, made, table, prompts, replies.lines, marks.lines, {"rating": rated} if words else {})
    against = paired.compared(folder, options.against) if options.against is not None else None
    said = [*words, *([against.words] if against else [])]
    path = page.write(folder, what, made, table, said)
    for line in (f"{what['title']}  {what['model']}", *results.told(made), *said):
        print(visible(line))
    print(visible(f"report  {path}"))
    return 0


def _words_of(options: Options) -> str:
    """What has named the rows."""
    return "--data" if any(name == "data" for name, _ in options.of_source) else "--benchmark"


def _runs_programs(config: Config) -> dict[str, Any]:
    """What the scoring of programs depends on; {} where none are run. Raises RuntimeError where no sandbox works
    here, ValueError where there is no compiler.
    """
    if not runs_programs(config.reward.functions):
        return {}
    driver = programs.Programs(config.code).sandbox.driver
    if config.task.source.endswith("codeforces") and shutil.which("g++") is None:
        raise ValueError("benchmark codeforces needs the compiler g++ for replies in C++: install it (apt-get install g++)")
    limits = {"livecodebench": programs.LIVECODEBENCH, "humaneval": programs.HUMANEVAL}
    own = limits.get(config.task.source.rpartition(":")[2])
    return {"sandbox": driver, "limits": vars(own) if own else "of each problem", "checker": vars(programs.CHECKER)}


def _contests(options: Options, rows: list[dict[str, Any]]) -> tuple[list[rating.Contest], int] | None:
    """The contests that rate, and how many are left out. Raises ValueError where there can be no rating."""
    if options.contests is None:
        if options.as_published:
            raise ValueError("--as-published has no effect without --contests: name the file with the standings")
        return None
    if any("contest" not in row for row in rows):
        raise ValueError(f"--contests has no effect on {options.benchmark}: its problems are of no contest; leave it out")
    try:
        return rating.contests(contests_of(options.contests), [(row["contest"], row["index"]) for row in rows])
    except ValueError as error:
        raise ValueError(f"--contests {options.contests}: {error}") from None


def _rated(
    humans: tuple[list[rating.Contest], int] | None, prompts: list[Prompt], marks: Mapping[Key, Mark], samples: int,
    as_published: bool,
) -> tuple[list[dict[str, Any]], list[str]]:  # fmt: skip
    """The rating of each contest, and what is to be said of them."""
    if humans is None:
        return [], []
    each = []
    for contest in humans[0]:
        here = [prompt for prompt in prompts if prompt.columns["contest"] == contest.id]
        tries = {prompt.columns["index"]: [marks[prompt.id, i].right for i in range(samples)] for prompt in here}
        each.append(rating.rated(contest, tries, as_published))
    return [one._asdict() for one in each], [rating.words(each, humans[1], as_published)]


def _key(options: Options) -> str:
    """The endpoint's API key. Raises ValueError where the variable that was named is not set."""
    if not options.url:
        if options.key_variable:
            raise ValueError("--key-variable has no effect without --url: leave it out")
        return ""
    variable = options.key_variable or (KEY if os.environ.get(KEY) else "")
    return api_key_of(variable, "--key-variable")


def _sampled(replies: Lines[Reply], todo: list[Key], ask: Begin, most: int, report: Any) -> None:
    try:
        sample(replies, todo, ask, most, report)
    except (Failed, Unreadable) as error:
        left = sum(key not in replies.lines for key in todo)
        raise RuntimeError(
            f"the endpoint: {error}; {left} of {len(todo)} replies are missing: the same command goes on with them"
        ) from None


@contextmanager
def asking(config: Config, prompts: list[Prompt], options: Options, key: str) -> Iterator[tuple[Begin, int]]:
    """Whoever replies, and how many replies may be under way at once."""
    number = {prompt.id: i for i, prompt in enumerate(prompts)}
    if options.url:
        sampling, most = benchmarks.sampling_of(config), config.sampler.batch_size
        system = "" if config.task.system == "auto" else config.task.system
        endpoint = Endpoint(options.url, config.model.path, key, system, config.sampler.timeout, most)
        with closing(endpoint):

            def ask(one: Key) -> Future[Any]:
                i = number[one[0]]
                return endpoint.begin(prompts[i], benchmarks.seed_at(config, i, one[1]), sampling)

            yield ask, most
        return
    with ExitStack() as stack:
        with Console(stderr=True).status("loading the model"):
            begin_one, most = stack.enter_context(benchmarks.answering(config, prompts))
        yield lambda one: begin_one(number[one[0]], one[1]), most
