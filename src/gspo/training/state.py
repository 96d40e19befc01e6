"""The state of a training run: saving, restoring, and rewinding to a good checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gspo.config.files import to_toml
from gspo.config.schema import RunConfig
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
    """All components and state of a training run (created by assembly/assemble.py)."""

    config: RunConfig
    row: Algorithm
    sampler: Sampler
    evaluator: Sampler  # of held-out prompts, with the policy's own weights
    scorer: Scorer
    held_out: Sequence[Prompt]
    source: RolloutSource
    sampling: Sampling
    eval_sampling: Sampling
    learner: Learner
    log: RunLog
    screen: Progress
    decode: Callable[[Sequence[int]], str]  # special tokens included
    data: str  # fingerprint of the prompts
    guard: Guard
    failures: Failures = field(default_factory=Failures)
    step: int = 0  # finished ones
    tokens: int = 0
    good: bool = True  # whether the guard found no problem in the last step
    collapsed: bool = False
    old_logprobs: str = ""  # what "auto" is, once the first batch has told
    equal_steps: list[float] = field(default_factory=list)  # in a row, since the start or a resume: the one reward of each
    best: float | None = None  # the highest mean held-out reward so far (evaluation.py:rank)
    best_step: int = 0  # where it first was
    unevaluated: bool = False  # the last step's evaluation is missing: the sampler was lost


def save(run: Run, needed: bool = True) -> None:
    """Writes a checkpoint of all state that the next step depends on. If the disk rejects it, a run that can continue does
    so with a warning and the previous checkpoint; with `needed`, raises SaveError.
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
        "best": (run.best, run.best_step),
        "unevaluated": run.unevaluated,
        "log": run.log.position(),
    }
    keep = run.config.train.keep_checkpoints
    done = checkpoint.save(checkpoints, run.step, run.learner.save, state, to_toml(run.config), keep, needed)
    if done and run.good and run.config.guard.action != "off":  # what is gone back to, or begun from anew
        checkpoint.mark(checkpoints, run.step, checkpoint.GOOD, needed)
    if done and run.config.train.keep_best and run.best_step == run.step > 0:
        checkpoint.mark(checkpoints, run.step, checkpoint.BEST, needed)
        rank = f"mean reward {run.best:.4g}, not scored counted as 0"
        run.log.note(f"step {run.step}: the best evaluation so far ({rank}) is kept in {done}")


def restore(run: Run, state: dict[str, Any]) -> None:
    """Continues from a checkpoint whose model the policy already holds. Raises ValueError for one of other prompts."""
    saved = checkpoint.folder_of(run.log.folder.checkpoints, state["step"])
    checkpoint.check_same_data(state["data"], run.data)
    run.step = state["step"]
    run.tokens = state["tokens"]
    run.source.load_state_dict(state["source"])
    run.learner.resume(saved)
    enter_stage(run)
    load(run, state["version"])
    run.guard.load_state_dict(state["guard"])
    run.good = state["good"]
    run.old_logprobs = state["old_logprobs"]
    run.best, run.best_step = state["best"]
    run.unevaluated = state.get("unevaluated", False)
    # It may have been killed between save and mark.
    if run.good and run.config.guard.action != "off":
        checkpoint.mark(run.log.folder.checkpoints, run.step, checkpoint.GOOD)
    if run.config.train.keep_best and run.best_step == run.step > 0:
        checkpoint.mark(run.log.folder.checkpoints, run.step, checkpoint.BEST)
    checkpoint.check_threads(state, run.config.model.device)


def rest(run: Run) -> None:
    """Samplers that can release memory for the learner do so, until they load weights again."""
    for sampler in dict.fromkeys((run.sampler, run.evaluator)):  # they may be the same object
        sampler.rest()


def load(run: Run, version: int) -> None:
    """Loads the learner's weights into the samplers, under this version. Raises SamplerError."""
    weights = run.learner.publish(version)
    for sampler in dict.fromkeys((run.sampler, run.evaluator)):
        sampler.load(weights)


def enter_stage(run: Run) -> None:
    """Sets the learner's temperature and length limit to those that the next step's rollouts are sampled with."""
    if run.config.stage:
        rollout = rollout_at(run.config.rollout, run.config.stage, run.step + 1)
        run.learner.enter(rollout.temperature, rollout.max_completion_length)


def rewind(run: Run, best: tuple[float | None, int]) -> bool:
    """Restores weights, optimizer and clip range from the last good checkpoint, and lowers the learning rate. False if there
    is none. best: The best evaluation before this step, whose weights are dropped.

    Prompts, steps, versions and the log are not rewound: no prompt repeats within a pass, and no seed is reused. Rollouts
    in progress are dropped, and so is what a refresh would have judged queries by.
    """
    folder = checkpoint.marked(run.log.folder.checkpoints, checkpoint.GOOD)
    if folder is None:
        return False
    if problem := disk.damage(folder):
        run.log.warn(f"step {run.step}: cannot go back to {folder.name}: {problem}")
        return False
    rest(run)  # loading needs memory
    run.learner.rewind(folder, run.config.guard.lr_factor)
    run.source.drop(checkpoint.read_state(folder)["source"])  # sampled by weights that are gone
    run.guard.rewound()
    run.good, (run.best, run.best_step) = True, best
    load(run, run.sampler.version + 1)
    return True
