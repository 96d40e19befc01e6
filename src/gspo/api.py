"""The Python API: `train`, `sft` and `evaluate` with your own model, data and rewards."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gspo.assembly import assemble
from gspo.assembly.call_inputs import CallInputs, Source, configured
from gspo.assembly.models import all_rows
from gspo.config.commands import check_command
from gspo.config.rewards import RewardConfig
from gspo.config.schema import Config
from gspo.config.source_kind import GIVEN, kind
from gspo.distributed.ranks import RankLost
from gspo.interfaces import RewardsFailed
from gspo.learner.memory import OutOfMemory
from gspo.report.page import FIRST, reported
from gspo.report.read import read_lines
from gspo.rollout import evaluation
from gspo.rollout.failures import all_failed
from gspo.runs import checkpoint
from gspo.runs.log import is_number
from gspo.runs.progress import shown_metrics
from gspo.safe import visible
from gspo.training import trainer
from gspo.training.sft import fit
from gspo.training.state import Run
from gspo.types import Group

ENDS_AT_ONCE = RankLost, OutOfMemory, KeyboardInterrupt
"""Errors after which no report is written: the run restarts in another process, or the user interrupted it twice."""


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        folder: The run folder.
        model: The trained transformers model.
        tokenizer: Its tokenizer.
        metrics: The last metrics.
        finished: False if the run ended before its last step, on request or because the guard stopped it.
        collapsed: Whether the guard stopped it.
    """

    folder: Path
    model: Any
    tokenizer: Any
    metrics: dict[str, Any]
    finished: bool
    collapsed: bool = False

    def __repr__(self) -> str:
        shown = ("step", "reward", "loss", "eval/accuracy")
        numbers = ", ".join(f"{name} = {self.metrics[name]:.4g}" for name in shown if is_number(self.metrics.get(name)))
        state = "finished" if self.finished else "collapsed" if self.collapsed else "not finished"
        return f"Result({str(self.folder)!r}, {state}{': ' if numbers else ''}{numbers})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the report's first figures, the last metrics, and a link to the report."""
        report, parts = self.folder / "report.html", [f"<p>{escape(visible(repr(self)))}</p>"]
        for name in FIRST:
            if (file := self.folder / "figures" / f"{name}.svg").is_file():
                data = base64.b64encode(file.read_bytes()).decode()
                parts.append(f'<img alt="{name}" width="432" src="data:image/svg+xml;base64,{data}">')
        rows = ((escape(visible(name)), form.format(self.metrics[key])) for key, name, form in shown_metrics(self.metrics))
        parts += ["<table>", *(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows), "</table>"]
        if report.is_file():
            link = report.as_uri() if report.is_absolute() else quote(bytes(report))
            parts.append(f'<p><a href="{link}">{escape(visible(report))}</a></p>')
        return "\n".join(parts)


def train(
    model: Any = None,
    dataset: Any = None,
    reward: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    *,
    tokenizer: Any = None,
    eval_dataset: Any = None,
    config: Source = None,
    resume: bool = False,
    allow: Collection[str] = (),
    **sections: dict[str, Any],
) -> Result:
    """Trains `model` on the prompts of `dataset` to maximise `reward`, by default with GSPO.

    Args:
        model: A folder, a Hugging Face id, or a loaded transformers model. This and the next two may be set in `config`.
        dataset: A list of dicts or a datasets.Dataset with a `prompt` column.
        reward: `f(prompts, completions, **columns) -> list[float | None]`, plain or async, or a list of such functions.
        tokenizer: The tokenizer of a loaded model.
        eval_dataset: Held-out rows to evaluate on every `eval.every` steps.
        config: A TOML file, a Config, or nested dicts.
        resume: Continue the run in `log.dir` from its last checkpoint.
        allow: Settings that a resumed run changes on purpose, such as `["optimizer.lr"]`.
        **sections: Overrides of `config`, such as `rollout={"num_prompts": 8}`.

    Raises:
        ValueError: For inputs that cannot work, before training starts.
    """
    functions = _functions(reward)
    settings = configured(config, sections, model, tokenizer, dataset, resume)
    check_command(settings, "train")
    _check_given(settings, functions, eval_dataset)
    given = CallInputs(model, tokenizer, dataset, eval_dataset, functions)
    return _run(assemble.training(settings, resume, given, allow), trainer.train)


def sft(
    model: Any = None,
    dataset: Any = None,
    *,
    tokenizer: Any = None,
    config: Source = None,
    resume: bool = False,
    allow: Collection[str] = (),
    **sections: dict[str, Any],
) -> Result:
    """Fine-tunes `model` on `dataset`, whose rows have a `prompt` and a `completion`. Arguments as in `train`."""
    settings = configured(config, sections, model, tokenizer, dataset, resume)
    check_command(settings, "sft")
    return _run(assemble.imitating(settings, resume, CallInputs(model, tokenizer, dataset), allow), fit)


def evaluate(
    model: Any = None,
    dataset: Any = None,
    reward: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    *,
    tokenizer: Any = None,
    config: Source = None,
    **sections: dict[str, Any],
) -> tuple[dict[str, float], list[Group]]:
    """Returns the metrics of `model` (`eval/accuracy` and its 95 % interval) and its completions. Arguments as in `train`.

    Evaluates every row of `dataset`, whatever `config` says about row counts; without `dataset`, the held-out prompts of
    the task. A completion that could not be scored counts as wrong (`eval/failed`).

    Raises:
        RuntimeError: If no completion could be scored.
    """
    functions = _functions(reward)
    settings = configured(config, sections, model, tokenizer, dataset)
    if dataset is not None:
        _check_all_rows(sections)
        settings = all_rows(settings)
    check_command(settings, "eval")
    with assemble.evaluating(settings, CallInputs(model, tokenizer, dataset, None, functions)) as arguments:
        metrics, groups = evaluation.evaluate(**arguments)
    if why := all_failed(groups):
        raise RewardsFailed(why)
    return metrics, groups


def _functions(reward: Any) -> tuple[Callable[..., Any], ...]:
    several = reward if isinstance(reward, (list, tuple)) else (reward,)
    for function in several:
        if not callable(function):
            expected = "expected a function f(prompts, completions, **columns), or a list of them"
            named = 'named rewards go into config={"reward": {"functions": ["exact"]}}'
            raise ValueError(f"reward = {function!r:.80}: {expected}; {named}")
    return tuple(several)


def _check_all_rows(sections: dict[str, Any]) -> None:
    """Raises ValueError for settings that select rows: they would be ignored, since all given rows are evaluated."""
    of_source = ("task.split", "task.config") if sections["task"]["source"] == GIVEN else ()
    for key in ("task.size", "task.eval_source", "task.eval_split", "eval.num_prompts", *of_source):
        section, name = key.split(".")
        if value := sections.get(section, {}).get(name):
            remedy = "Leave it out, and give the rows to evaluate, as in dataset=rows[:100]"
            raise ValueError(f"{key} = {value!r} has no effect: all rows of dataset are evaluated. {remedy}")


def _check_given(settings: Config, functions: Sequence[Callable[..., Any]], eval_dataset: Any) -> None:
    """Raises ValueError if an argument from Python and a setting conflict, so that one of them would be ignored."""
    task, reward = settings.task, settings.reward
    if eval_dataset is not None and not settings.eval.every:
        raise ValueError('eval_dataset is given but eval.every = 0: set eval={"every": STEPS} to evaluate on it')
    for key, value in (("eval_source", task.eval_source), ("eval_split", task.eval_split)):
        if eval_dataset is not None and value is not None:
            raise ValueError(f"task.{key} = {value!r}: eval_dataset is given, which takes its place: leave one of them out")
    in_threads = functions and reward.functions == ["task"] and kind(task.source) != "generated"
    if in_threads and reward.workers != RewardConfig().workers:
        why = "functions given from Python run in threads"
        remedy = "leave it out, or name them as module:function in reward.functions"
        raise ValueError(f"reward.workers = {reward.workers} has no effect: {why}; {remedy}")


def _run(assembled: AbstractContextManager[tuple[Any, Any]], loop: Callable[[Any], dict[str, Any]]) -> Result:
    """Runs `loop` on a run, saves the final model, and writes the report."""
    with reported(*ENDS_AT_ONCE) as folders, assembled as (run, hf):
        log, steps = run.log, run.config.train.steps
        folders.append(folder := log.folder.path)
        if run.step >= steps:
            log.note(f"all {steps} steps are done already: nothing is trained; raise train.steps to go on")
        metrics = loop(run) or [{}, *read_lines(folder / "metrics.jsonl")][-1]  # of an earlier start, if there was one
        collapsed = isinstance(run, Run) and run.collapsed
        finished = run.step >= steps and not collapsed
        if finished:
            checkpoint.save_model(log.folder, run.learner.publish(run.step).save, hf.model)
        elif collapsed:
            log.note(trainer.AFTER_COLLAPSE)
        else:
            done = f"after step {run.step} of {steps}" if run.step else "before the first step was done"
            log.note(f"stopped {done}; {checkpoint.resume_hint(log.folder.checkpoints)}")
    return Result(folder, hf.model, hf.tokenizer, metrics, finished, collapsed)
