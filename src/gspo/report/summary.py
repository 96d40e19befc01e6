"""The result of a run in words and key figures: the headline, the sentences below it, the tiles."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, NamedTuple

from gspo.report import numbers
from gspo.report.events import ended
from gspo.report.judgements import judge
from gspo.report.numbers import ARROW, NBSP, change, ends, mean, percent, plural
from gspo.report.read import RunMetrics

Tile = tuple[str, str, str]  # name, value, note


class RunSummary(NamedTuple):
    """A run as its page describes it."""

    run: RunMetrics
    config: dict[str, Any]
    supervised: bool  # it imitated rows
    served: bool  # agents submitted the trajectories that it learned from
    error: str  # what ended it; "" for none
    collapsed: str  # why the guard stopped it; "" if it did not
    planned: int  # number of steps; 0 if unknown


def summarise(folder: Path, run: RunMetrics, config: dict[str, Any]) -> RunSummary:
    """Summarises the run in a folder."""
    keys = {key for line in run.lines for key in line}
    supervised = "loss" in keys and "reward" not in keys
    agents = "task" in config and not get(config, "task", "source") and not supervised
    served = "turns/trained" in keys or agents  # agents decide how many steps there are
    planned = 0 if served else get(config, "train", "steps") or 0
    error, collapsed = (ended(folder, kind, run) for kind in ("error", "collapse"))
    return RunSummary(run, config, supervised, served, error, collapsed, planned)


def get(config: dict[str, Any], section: str, key: str) -> Any:
    """A setting; None if it is missing."""
    return config.get(section, {}).get(key)


def origin(summary: RunSummary) -> str:
    """Where the numbers come from: run, algorithm, data, model."""
    kind = "supervised fine-tuning" if summary.supervised else get(summary.config, "algorithm", "name")
    parts = [summary.run.name, kind, get(summary.config, "task", "source"), get(summary.config, "model", "path")]
    return " · ".join(str(part) for part in parts if part and not str(part).startswith("(given"))  # rows from Python


def headline(summary: RunSummary) -> str:
    """The result in words and numbers. Failures come first."""
    done = numbers.steps(summary.run)
    of = f"{done} of {summary.planned} steps" if summary.planned > done else plural(done, "step")
    if summary.error:
        return f"Failed after {of}"
    if summary.collapsed:
        return f"Collapsed: stopped after {of}"
    if not summary.run.lines:
        return "No step yet"
    result, until = _result(summary), summary.run
    if _main(until) == "eval/accuracy":  # steps after the last evaluation have no part in it
        done = int(until.series("eval/accuracy")[0][-1])
        until = RunMetrics(until.name, [line for line in until.lines if line.get("step", 0) <= done])
    if result and not done:
        return f"{result[:1].upper()}{result[1:]} before training"
    span = f"in {plural(done, 'step')}, {numbers.duration(numbers.seconds(until))}"
    return f"{result[:1].upper()}{result[1:]} {span}" if result else span.removeprefix("in ")


def _main(run: RunMetrics) -> str:
    """The metric that sums up the result: held-out accuracy, otherwise the reward (the KL to a teacher, if only that
    teaches), otherwise the loss; "" without any.
    """
    keys = ["eval/accuracy", "reward", "loss"]
    if not run.series("reward")[1].any():
        keys.insert(1, "teacher/kl")
    return next((key for key in keys if len(run.series(key)[0])), "")


def _result(summary: RunSummary) -> str:
    """The main figure in words, to stand within a sentence."""
    run, key = summary.run, _main(summary.run)
    loss = "supervised fine-tuning: loss" if summary.supervised else "loss"
    graded = numbers.graded(run)
    return {
        "eval/accuracy": f"held-out accuracy {numbers.accuracy(run)}" + (f", reward {graded}" if graded else ""),
        "reward": f"mean reward {change(ends(run, 'reward'), '{:.2f}')}",
        "teacher/kl": f"KL to the teacher {change(ends(run, 'teacher/kl'), '{:.3f}')} nats a token",
        "loss": f"{loss} {change(ends(run, 'loss'), '{:.3f}')}",
        "": "",
    }[key]


def lead(summary: RunSummary) -> str:
    """The sentences below the headline: result of a failed run, intervals, reward, share of clipped tokens."""
    run, sentences, main = summary.run, [], _main(summary.run)
    ended_badly = bool(summary.error or summary.collapsed)
    if ended_badly and main:
        sentences.append(f"Until then: {_result(summary)} (the last in step {run.series(main)[0][-1]:.0f}).")
    sentences += _certainty(run)
    if main == "eval/accuracy" and ends(run, "reward"):
        sentences.append(f"Mean reward in training {change(ends(run, 'reward'), '{:.2f}')}.")
    elif main == "reward" and summary.served:
        sentences.append("These are rewards of the trajectories that it was trained on.")
    elif main == "reward":
        never = not get(summary.config, "eval", "every")
        why = " (eval.every = 0)" if never else " yet"
        sentences.append(f"Nothing was evaluated{why}: these are rewards of the prompts that it was trained on.")
        if never:
            sentences.append("Set eval.every to a number of steps, or measure the trained model with `gspo eval`.")
    elif summary.supervised:
        sentences.append("The model was trained to imitate completions. The loss says how well it predicts their tokens.")
    clipped = mean(run, "clip_ratio/tokens")
    if clipped is not None:
        sentences.append(f"{percent(clipped)} of the tokens were clipped.")
    if summary.planned > numbers.steps(run) and not ended_badly:
        sentences.append(f"Not finished: {numbers.steps(run)} of {summary.planned} steps.")
    return " ".join(sentences)


def _certainty(run: RunMetrics) -> list[str]:
    """Sentences about the intervals of the accuracies, and whether chance explains their change."""
    lines = numbers.with_interval(run)
    if not lines:
        return []
    last = lines[-1]
    both = " and ".join(map(numbers.interval, [lines[0], last][: len(lines)]))
    prompts = last.get("eval/prompts")
    of = f", on {prompts:.0f} prompts never trained on" if prompts else ""
    sentences = [f"95 % interval{'s' * (len(lines) > 1)} {both}{of}."]
    if failed := last.get("eval/failed"):
        count = "they count as wrong, and not in the reward"
        sentences.append(f"In the last evaluation {failed:.0f} completions were not scored; {count}.")
    if judged := judge("accuracy", run):
        sentences.append(f"Accuracy {judged.text[:1].lower()}{judged.text[1:]}")
    return sentences


def tiles(summary: RunSummary) -> list[Tile]:
    """The key figures."""
    run, config = summary.run, summary.config
    found: list[Tile] = []
    if len(run.series("eval/accuracy")[0]):
        reward = f"reward {graded}, " if (graded := numbers.graded(run)) else ""
        steps = [f"{step:.0f}" for step in run.series("eval/accuracy")[0][[0, -1]]]
        where = f"steps {steps[0]} and {steps[1]}" if steps[0] != steps[1] else f"step {steps[0]}"
        found.append(("Held-out accuracy", numbers.accuracy(run), f"{reward}{where}"))
    key, form = ("reward", "{:.2f}") if ends(run, "reward") else ("loss", "{:.3f}")
    where = _ends_at(run, key)
    if ends(run, key):
        found.append((key.capitalize(), change(ends(run, key), form), where))
    return found + _watched(run, config, where) + _of_updates(run) + _of_sampling(run) + _of_queries(run)


def _ends_at(run: RunMetrics, key: str) -> str:
    """Which steps `ends` takes. A failed run may lack the last ones."""
    steps = run.series(key)[0]
    if len(steps) >= 24:
        return f"mean of the first and last {len(steps) // 12} steps"
    if len(steps) < 2:
        return "one step"
    whole = steps[-1] == numbers.steps(run)
    return "first and last step" if whole else f"steps {steps[0]:.0f} and {steps[-1]:.0f}"


def _watched(run: RunMetrics, config: dict[str, Any], where: str) -> list[Tile]:
    """The reward functions with weight 0, which are only monitored."""
    functions, weights = (get(config, "reward", key) or [] for key in ("functions", "weights"))
    found = []
    for function, weight in zip(functions, weights):
        name = function.rpartition(":")[2]
        evaluated = run.series(f"eval/reward/{name}")[1]
        values = (evaluated[0], evaluated[-1]) if len(evaluated) > 1 else ends(run, f"reward/{name}")
        if weight == 0 and values:
            share = all(0 <= v <= 1 for v in values)
            text = ARROW.join(percent(v) for v in values) if share else change(values, "{:.2f}")
            span = "first and last evaluation" if len(evaluated) > 1 else where
            found.append((f"Watched: {name}", text, span))
    return found


def _of_updates(run: RunMetrics) -> list[Tile]:
    found = []
    if mean(run, "clip_ratio/tokens") is not None:
        low, high = (run.series(k)[1] for k in ("clip/epsilon", "clip/epsilon_high"))
        at = " at the end" if len(set(low.tolist())) > 1 else ""
        span = f"range −{low[-1]:.3g} to +{high[-1]:.3g}{at}" if len(low) and len(high) else "mean over the run"
        found.append(("Clipped tokens", percent(mean(run, "clip_ratio/tokens")), span))
    if mean(run, "moe/volatility") is not None:
        agree = mean(run, "moe/sampler_agreement")
        note = f"{percent(agree)} agree with the sampler's" if agree is not None else "mean over the run"
        found.append(("Experts changed", percent(mean(run, "moe/volatility")), note))
    return found


def _of_queries(run: RunMetrics) -> list[Tile]:
    """Stages and refreshes, if there were any."""
    found = []
    stages, lengths, active, resting, unseen = (
        run.series(key)[1]
        for key in ("stage", "stage/max_completion_length", "queries/active", "queries/resting", "queries/unseen")
    )
    if len(stages) and stages[-1]:
        text = f"up to {lengths[0]:.0f}{ARROW}{lengths[-1]:.0f} tokens" if len(lengths) else "begun"
        found.append(("Stages", f"{stages[-1]:.0f}", text))
    if len(active) and len(resting) and len(unseen):
        back, new = (run.series(f"queries/{key}")[1].sum() for key in ("returned", "new"))
        text = f"{resting[-1]:.0f} dropped, {unseen[-1]:.0f} unseen at the end; {back:.0f} returned, {new:.0f} new"
        found.append(("Queries", f"{active[0]:.0f}{ARROW}{active[-1]:.0f}", text))
    if found and (teaching := mean(run, "groups/with_signal")) is not None:
        found.append(("Groups that teach", percent(teaching), "mean over the run"))
    return found


def _of_sampling(run: RunMetrics) -> list[Tile]:
    found = []
    if ends(run, "completions/mean_length"):
        cut = mean(run, "completions/clipped_ratio")
        text = f"tokens; {percent(cut)} cut off at a limit" if cut is not None else "tokens"
        found.append(("Completion length", change(ends(run, "completions/mean_length"), "{:.0f}"), text))
    times, speed, tokens = (run.series(k)[1] for k in ("time/step", "tokens_per_second", "tokens"))
    if len(times):
        note = f"{statistics.median(times):.2g}{NBSP}s a step"
        note += f", {statistics.median(speed):,.0f} tokens/s" if len(speed) else ""
        note += f", {numbers.count(float(tokens.sum()))} tokens" if len(tokens) else ""
        found.append(("Time", numbers.duration(numbers.seconds(run)), note))
    return found
