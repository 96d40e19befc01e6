"""Opening a run's folder: new or to be resumed, locked, with its log and screen and the state to go on from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gspo import checkpoint
from gspo.config.files import load, to_dict, to_toml
from gspo.config.schema import Config
from gspo.progress import Progress
from gspo.runlog import RunFolder, RunLog
from gspo.trackers import check_trackers, open_trackers

# May differ between a run and its resumption: where it is, what it shows, when it stops.
FREE = {
    *("log", "guard", "serve", "model.device", "reward.timeout", "reward.workers"),
    *("reward_model.device", "reward_model.url", "reward_model.batch_size", "reward_model.timeout", "reward_model.retries"),
    *("judge.url", "judge.cache", "judge.max_concurrent", "judge.timeout", "judge.retries", "judge.key_variable"),
    *("reward_model.max_concurrent", "reward_model.key_variable"),
    *("sampler.batch_size", "sampler.url", "sampler.python", "sampler.exchange", "sampler.timeout"),
    *("eval.every", "eval.num_generations", "eval.temperature", "eval.top_p", "eval.top_k"),
    *("train.steps", "train.save_every", "train.keep_checkpoints", "train.micro_batch_tokens"),
    *("train.gradient_checkpointing", "train.max_bad_updates", "train.offload_optimizer", "train.offload_reference"),
}


@contextmanager
def claimed(config: Config, resume: bool) -> Iterator[tuple[RunFolder | None, Path | None]]:
    """To resume: the run's folder, locked before anything of it is read, and its newest checkpoint. Else (None, None)."""
    check_trackers(config.log.trackers)
    if not resume:
        RunFolder(config.log.dir).check_unused()
        yield None, None
        return
    with RunFolder.resume(config.log.dir) as folder:
        same_run(load(folder.config), config)
        yield folder, checkpoint.latest(folder.checkpoints)


@contextmanager
def open_run(
    config: Config, folder: RunFolder | None, last: Path | None, title: str
) -> Iterator[tuple[RunLog, Progress, dict[str, Any] | None]]:
    """The log and the screen of a run, in a new folder if there is none yet, and the state to go on from, if any."""
    with ExitStack() as stack:
        toml = to_toml(config)
        if folder is None:
            folder = stack.enter_context(RunFolder.create(config.log.dir, toml))
        part = folder.config.with_suffix(".part")
        part.write_text(toml, encoding="utf-8")
        part.replace(folder.config)
        state = checkpoint.load_state(last) if last is not None else None
        start = state["step"] if state else 0
        trackers = open_trackers(config.log.trackers, folder.path, config.log.project, to_dict(config), start)
        screen = stack.enter_context(Progress(config.train.steps, start, title=title))
        log = stack.enter_context(RunLog(folder, trackers, screen))
        log.rewind(state["log"] if state else {})
        log.step = start
        stack.enter_context(told(log))
        yield log, screen, state


@contextmanager
def told(log: RunLog) -> Iterator[None]:
    """Python warnings of gspo's own code (data, model) go into the run's log, where the report repeats them."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Any, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
            if issubclass(category, UserWarning) and f"{Path(__file__).parent}" in filename:
                log.warn(str(message))
            else:
                show(message, category, filename, *rest, **more)

        warnings.showwarning = note
        yield


def same_run(old: Config, new: Config) -> None:
    """Raises ValueError where `new` would continue another run than `old`."""
    for section, table in to_dict(new).items():
        before = to_dict(old)[section]
        for name in sorted({*table, *before}):
            key = f"{section}.{name}"
            if before.get(name) != table.get(name) and not {section, key} & FREE:
                raise ValueError(
                    f"{key} = {table.get(name)!r} cannot be changed by --resume: the run began with {before.get(name)!r}. "
                    "Set it back, or start another run from the checkpoint's model"
                )
