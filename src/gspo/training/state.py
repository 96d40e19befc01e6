"""Everything that a training run is made of, its checkpoint, and the way back to a good one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo.config.files import to_toml
from gspo.config.schema import Config
from gspo.config.stages import rollout_at
from gspo.interfaces import Learner, RolloutSource, Sampler, Scorer
from gspo.objective.algorithms import Algorithm
from gspo.rollout.failures import Failures
from gspo.runs import checkpoint, disk
from gspo.runs.log import RunLog
from gspo.runs.progress import Progress
from gspo.training.guard import Guard
from gspo.types import Prompt, Sampling


@dataclass
class Run:
    """Everything that a training run is made of (assembly/assemble.py makes it).

    row: the algorithm's, in the table. evaluator: samples completions of held-out prompts, with the policy's own weights.
    data: a fingerprint of the prompts. step: steps done. good: the guard found nothing wrong with the last. old_logprobs:
    what "auto" has decided, "" before it has.
    """

    config: Config
    row: Algorithm
    sampler: Sampler
    evaluator: Sampler
    scorer: Scorer
    held_out: Sequence[Prompt]
    source: RolloutSource
    sampling: Sampling
    eval_sampling: Sampling
    learner: Learner
    log: RunLog
    screen: Progress
    decode: Callable[[int], str]
    data: str
    guard: Guard
    failures: Failures = field(default_factory=Failures)
    step: int = 0
    tokens: int = 0
    good: bool = True
    collapsed: bool = False
    old_logprobs: str = ""


def save(run: Run, needed: bool = True) -> None:
    """A checkpoint of everything that the next step depends on. Where the disk does not take it, a run that need not end now
    goes on with a warning, and the checkpoint before it stays; else raises SaveError.
    """
    run.screen.phase("saving", 0, 1)
    checkpoints = run.log.folder.checkpoints
    state = {
        "data": run.data,
        "version": run.sampler.version,
        "tokens": run.tokens,
        "source": run.source.state_dict(),
        "guard": run.guard.state_dict(),
        "good": run.good,
        "old_logprobs": run.old_logprobs,
        "log": run.log.position(),
    }
    tell, keep = None if needed else run.log.warn, run.config.train.keep_checkpoints
    done = checkpoint.save(checkpoints, run.step, run.learner.save, state, to_toml(run.config), keep, tell)
    if done and run.good and run.config.guard.action == "rewind":
        checkpoint.keep_good(checkpoints, run.step, tell)


def restore(run: Run, state: dict[str, Any]) -> None:
    """Continue from a checkpoint whose model the policy already holds. Raises ValueError for one of an earlier gspo or of
    other prompts.
    """
    saved = checkpoint.folder_of(run.log.folder.checkpoints, state["step"])
    checkpoint.same_source(saved, state["source"])
    checkpoint.same_data(state["data"], run.data)
    run.step = state["step"]
    run.tokens = state["tokens"]
    run.source.load_state_dict(state["source"])
    run.learner.resume(saved)
    enter_stage(run)
    load(run, state["version"])
    run.guard.load_state_dict(state["guard"])
    run.good = state["good"]
    run.old_logprobs = state["old_logprobs"]
    checkpoint.tell_threads(state, run.config.model.device, run.log.warn)


def rest(run: Run) -> None:
    """The samplers give up the memory that the learner needs, where they can, until they are given weights."""
    for sampler in dict.fromkeys((run.sampler, run.evaluator)):  # they may be one
        sampler.rest()


def load(run: Run, version: int) -> None:
    """Gives the samplers the learner's weights, as this version. Raises SamplerError."""
    weights = run.learner.publish(version)
    for sampler in dict.fromkeys((run.sampler, run.evaluator)):
        sampler.load(weights)


def enter_stage(run: Run) -> None:
    """Has the learner read what the next step trains on as it is sampled."""
    if run.config.stage:
        rollout = rollout_at(run.config.rollout, run.config.stage, run.step + 1)
        run.learner.enter(rollout.temperature, rollout.max_completion_length)


def rewind(run: Run) -> bool:
    """Takes weights, optimizer and clip range of the last good checkpoint, and lowers the learning rate. False without one.

    Prompts, steps, versions and the log go on: a pass repeats no prompt, and no seed comes twice. Rollouts that wait (with
    rollout.delay) are dropped.
    """
    folder = checkpoint.good(run.log.folder.checkpoints)
    if folder is not None and (problem := disk.damage(folder)):
        run.log.warn(f"step {run.step}: no way back to {folder.name}: {problem}")
        return False
    if folder is None:
        return False
    rest(run)  # what is loaded needs memory
    run.learner.rewind(folder, run.config.guard.lr_factor)
    run.source.drop()  # sampled by weights that are gone
    load(run, run.sampler.version + 1)
    run.guard.rewound()
    run.good = True
    return True
