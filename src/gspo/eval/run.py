"""`gspo eval MODEL --benchmark NAME`: samples and scores the missing replies, then computes the figures."""

from __future__ import annotations

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from gspo.assembly import benchmark_models
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.scorers import scorer_of
from gspo.config.rewards import runs_programs
from gspo.config.schema import Config
from gspo.data.benchmarks.codeforces import Contest, contests_of
from gspo.data.benchmarks.table import Rows, left_out
from gspo.data.loaders import read
from gspo.eval import page, paired, rating, results
from gspo.eval.endpoint import Endpoint
from gspo.eval.manifest import begin, begun_on, manifest
from gspo.eval.replies import REFUSED, Key, Lines, Mark, Reply
from gspo.eval.sampling import mark, missing_keys, sample, shuffle_problems, with_thinking
from gspo.eval.settings import Options, folder_of
from gspo.rewards import programs
from gspo.rewards.code import opened
from gspo.rewards.http_client import api_key_of
from gspo.runs.progress import Progress, spinner
from gspo.safe import visible
from gspo.types import Prompt

logger = logging.getLogger(__name__)

KEY = "OPENAI_API_KEY"
Begin = Callable[[Key], Future[Any]]


def evaluate(options: Options, config: Config) -> int:
    """Runs or resumes an evaluation, prints the figures, and writes the page. Returns the exit status.

    Raises ValueError for bad input, before anything is sampled.
    """
    folder = folder_of(options, config)
    key = _key(options)
    rows, unjudgeable = _rows(options, config)
    samples = config.eval.num_generations
    model: tuple[str, dict[str, str]] = "", {}
    if not options.url:
        model = benchmark_models.version(config.model), benchmark_models.computation(config.model)
        config = benchmark_models.on_its_day(config, begun_on(folder))
    what = manifest(options.benchmark, config, rows, options.url, *model, _runs_programs(config))
    what["data"] |= {"left_out": unjudgeable} if unjudgeable else {}
    if options.against is not None:
        paired.check(what, options.against)
    humans = _contests(options, rows)
    with scorer_of(config, CallInputs()) as scorer:
        prompts = benchmark_models.worded(config, rows) if options.url else benchmark_models.encoded(config, rows)
        scorer.check(prompts)
        scorer.wait()
        begun = begin(folder, what)
        with Lines(folder / "replies.jsonl", Reply) as replies, Lines(folder / "marks.jsonl", Mark) as marks:
            with Progress(0, title="evaluation") as screen:
                todo = list(missing_keys(prompts, samples, replies.lines))
                if begun:
                    logger.info(f"{folder}: goes on, {len(prompts) * samples - len(todo)} replies are there")
                if todo:
                    todo = shuffle_problems(todo) if begun and options.url else todo
                    with open_sampler(config, prompts, options, key) as (ask, most):
                        _sampled(replies, todo, ask, most, screen.phase, options)
                ordered = [replies.lines[each] for each in missing_keys(prompts, samples, ())]
                prompts = with_thinking(prompts, ordered) if options.url else prompts
                mark(marks, ordered, prompts, scorer, config.reward.correct_threshold, screen.phase)
            table = results.problem_rows(prompts, samples, replies.lines, marks.lines)
            made = results.figures(table)
            notes = [f"{left_out(unjudgeable)}."] if unjudgeable else []
            extra = {}
            if humans is not None:
                contests, missing = humans
                rated = _rated(contests, prompts, table, options.as_published)
                extra["rating"] = [one._asdict() for one in rated]
                notes.append(rating.describe(rated, missing, options.as_published, samples))
            results.write(folder, what, made, table, prompts, replies.lines, marks.lines, extra)
    if options.against is not None:
        notes.append(paired.compared(folder, options.against).words)
    path = page.write(folder, what, made, table, notes)
    for line in (f"{what['title']}  {what['model']}", *results.describe(made), *notes):
        print(visible(line))
    print(visible(f"report  {path}"))
    return 0


def _rows(options: Options, config: Config) -> tuple[Rows, dict[str, int]]:
    """The rows of the benchmark, and how many were left out, by reason. Warns of each."""
    word = "--data" if "data" in dict(options.of_source) else "--benchmark"
    source = read(config.task.source, config.task, config.task.split, word)
    rows, counts = [dict(row) for _, row in source], Counter(source.left_out)
    if not runs_programs(config.reward.functions):
        return rows, counts
    (sandbox, _), fit, last = opened(config.code), [], ""
    for row in rows:
        reason, why = programs.fault_of(sandbox, row)
        if not reason:
            fit.append(row)
            continue
        counts[reason] += 1
        last = f"problem {row['id']} is left out: {reason}{': ' * bool(why)}{why:.200}"
        logger.warning(last)
    if not fit:
        why = f"{left_out(counts)}; {last}"
        raise ValueError(f"{config.task.source}: there is no problem that can be judged: {why}")
    return fit, dict(counts)


def _runs_programs(config: Config) -> dict[str, Any]:
    """What the scoring of programs depends on; {} if none are run. Raises RuntimeError without a sandbox or compiler."""
    if not runs_programs(config.reward.functions):
        return {}
    driver = programs.opened_for(config.reward.functions[0], config.code)[0].driver
    limits = {"livecodebench": programs.LIVECODEBENCH, "humaneval": programs.HUMANEVAL}
    own = limits.get(config.task.source.rpartition(":")[2])
    return {"sandbox": driver, "limits": vars(own) if own else "of each problem", "checker": vars(programs.CHECKER)}


def _contests(options: Options, rows: Rows) -> tuple[list[Contest], rating.Missing] | None:
    """The contests that rate, and how many do not; None without --contests. Raises ValueError if no rating is possible."""
    if options.contests is None:
        if options.as_published:
            raise ValueError("--as-published has no effect without --contests: name the file with the standings")
        return None
    if any("contest" not in row for row in rows):
        raise ValueError(f"--contests has no effect on {options.benchmark}: its problems are of no contest; leave it out")
    where = f"--contests {options.contests}"
    contests = contests_of(options.contests, where)
    try:
        return rating.that_rate(contests, [(row["contest"], row["index"]) for row in rows])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _rated(contests: list[Contest], prompts: list[Prompt], table: Rows, as_published: bool) -> list[rating.Rated]:
    tries: dict[str, dict[str, list[bool]]] = defaultdict(dict)
    for prompt, row in zip(prompts, table):
        tries[prompt.columns["contest"]][prompt.columns["index"]] = row["right"]
    return [rating.rated(contest, tries[contest.id], as_published) for contest in contests]


def _key(options: Options) -> str:
    """The endpoint's API key. Raises ValueError if its variable is not set, and for endpoint options without an endpoint."""
    if not options.url:
        if options.key_variable:
            raise ValueError("--key-variable has no effect without --url: leave it out")
        if options.refused_as_wrong:
            raise ValueError("--refused-as-wrong has no effect without --url: a model here refuses nothing; leave it out")
        return ""
    variable = options.key_variable or (KEY if os.environ.get(KEY) else "")
    return api_key_of(variable, "--key-variable")


def _sampled(replies: Lines[Reply], todo: list[Key], ask: Begin, most: int, report: Any, options: Options) -> None:
    """Requests the missing replies and stores them as they arrive. Raises RuntimeError if some are missing afterwards."""
    faults = sample(replies, todo, ask, most, report, options.refused_as_wrong)
    works = faults.stopped is None and any(reply.stop != REFUSED for reply in replies.lines.values())
    if options.refused_as_wrong and works:
        for key in faults.refusals:
            replies.add(Reply(*key, "", 0, REFUSED))
    if left := sum(key not in replies.lines for key in todo):
        why = f"the endpoint: {faults.describe()}. {left} of {len(todo)} replies are missing"
        raise RuntimeError(f"{why}: the same command goes on with them")


@contextmanager
def open_sampler(config: Config, prompts: list[Prompt], options: Options, key: str) -> Iterator[tuple[Begin, int]]:
    """Yields the function that requests a reply, and the maximum number of concurrent requests."""
    number = {prompt.id: i for i, prompt in enumerate(prompts)}
    with ExitStack() as stack:
        if not options.url:
            with spinner("loading the model"):
                begin_one, most = stack.enter_context(benchmark_models.answering(config, prompts))
            yield lambda one: begin_one(number[one[0]], one[1]), most
            return
        sampling, most = benchmark_models.sampling_of(config), config.sampler.batch_size
        system = "" if config.task.system == "auto" else config.task.system
        endpoint = Endpoint(options.url, config.model.path, key, system, config.sampler.timeout, most)
        stack.enter_context(closing(endpoint))

        def ask(one: Key) -> Future[Any]:
            i = number[one[0]]
            return endpoint.begin(prompts[i], benchmark_models.seed_at(config, i, one[1]), sampling)

        yield ask, most
