"""The training loop: runs steps and writes checkpoints until the last step or a collapse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gspo.interfaces import RefreshFailed, RewardsFailed, SamplerError
from gspo.runs.signals import stop_signals
from gspo.training.evaluation import evaluates, held_out
from gspo.training.state import Run, rewind, save
from gspo.training.step import step
from gspo.types import Group, Metrics

AFTER_COLLAPSE = (
    "a collapse is seldom undone: start anew from an earlier checkpoint's model with a lower optimizer.lr. To go on all the "
    'same, resume with guard.action = "warn"'
)


def train(run: Run) -> Metrics:
    """Trains until the last step or a stop signal. Returns the last step's metrics."""
    train = run.config.train
    metrics: Metrics = {}
    groups = iter(run.source)
    with stop_signals(run.log.note) as stop:
        if evaluates(run) and (run.step == 0 or run.unevaluated):
            run.log.metrics({"step": run.step} | held_out(run))
            if run.unevaluated:
                run.unevaluated = False
                save(run)
        while run.step < train.steps and not stop.asked:
            metrics, over = advance(run, groups, run.config.rollout.num_prompts)
            if over:
                break
            best = train.keep_best and run.best_step == run.step
            if run.step % train.save_every == 0 or run.step == train.steps or stop.asked or best:
                save(run, needed=run.step == train.steps or stop.asked)
    return metrics


def advance(run: Run, groups: Iterable[Group], count: int | None = None) -> tuple[Metrics, bool]:
    """One step on `count` groups (None: all) but for the checkpoint. Returns its metrics, and whether the run ends here."""
    best = run.best, run.best_step
    with saved_before_loss(run):
        run.scorer.at(run.step, run.config.train.steps)
        metrics, collapsed = step(run, groups, count)
        return metrics, bool(collapsed) and act(run, collapsed, best)


@contextmanager
def saved_before_loss(run: Run) -> Iterator[None]:
    """Saves a checkpoint if the sampler, a refresh or the rewards fail, then re-raises the error, which ends the run."""
    before = run.step
    try:
        yield
    except (SamplerError, RefreshFailed):
        if run.step:
            save(run)
        raise
    except RewardsFailed:
        if before:
            save(run)
        raise


def act(run: Run, collapsed: str, best: tuple[float | None, int]) -> bool:
    """Carries out guard.action after a collapse. Returns whether the run ends here. best: of the steps before this one."""
    guard = run.config.guard
    if guard.action == "warn":
        return False
    if guard.action == "rewind" and run.guard.rewinds < guard.max_rewinds and rewind(run, best):
        run.log.warn(
            f"step {run.step}: collapsed ({collapsed}). Back to the weights of the last good checkpoint, with the learning "
            f"rate times {guard.lr_factor:g}; rewind {run.guard.rewinds} of {guard.max_rewinds}"
        )
        save(run)
        return False
    why = "" if guard.action == "stop" else " No good checkpoint or rewind is left."
    run.collapsed = True
    run.log.event("collapse", collapsed)
    run.log.warn(f"step {run.step}: stopped, since the run collapsed ({collapsed}).{why} The last checkpoint is kept")
    save(run)
    return True
