"""Everything that a training run is made of, its checkpoint, and the way back to a good one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gspo.config.schema import Config
from gspo.learner.learner import Learner
from gspo.learner.objective import PolicyObjective
from gspo.ports import Policy, PromptSource, Sampler, Scorer
from gspo.rollout.asynchronous import AheadSource
from gspo.rollout.dynamic_sampling import RefilledSource
from gspo.rollout.external import HandedSource
from gspo.rollout.synchronous import SynchronousSource
from gspo.runs import checkpoint
from gspo.runs.log import RunLog
from gspo.runs.progress import Progress
from gspo.training.guard import Guard
from gspo.types import Prompt, Sampling

Metrics = dict[str, Any]


@dataclass
class Run:
    """Everything that a training run is made of (build/assemble.py makes it).

    evaluator: samples held-out completions, with the policy's own weights. data: a fingerprint of the prompts. step: steps
    done. good: the guard found nothing wrong with the last. old_logprobs: what "auto" has decided, "" before it has.
    """

    config: Config
    policy: Policy
    reference: Policy | None
    sampler: Sampler
    evaluator: Sampler
    scorer: Scorer
    prompts: PromptSource
    held_out: Sequence[Prompt]
    source: SynchronousSource | RefilledSource | AheadSource | HandedSource
    sampling: Sampling
    eval_sampling: Sampling
    learner: Learner
    objective: PolicyObjective
    log: RunLog
    screen: Progress
    decode: Callable[[int], str]
    data: str
    guard: Guard
    step: int = 0
    tokens: int = 0
    good: bool = True
    old_logprobs: str = ""


def save(run: Run, needed: bool = True) -> None:
    """A checkpoint of everything that the next step depends on. Where the disk does not take it, a run that need not end now
    goes on with a warning, and the checkpoint before it stays; else raises SaveError.
    """
    run.screen.phase("saving", 0, 1)
    state = {
        "optimizer": run.learner.optimizer.state_dict(),
        "position": run.prompts.position,
        "data": run.data,
        "version": run.sampler.version,
        "tokens": run.tokens,
        "waiting": run.source.state_dict(),
        "objective": run.objective.state_dict(),
        "policy": run.policy.state_dict(),
        "guard": run.guard.state_dict(),
        "lr_scale": run.learner.optimizer.scale,
        "good": run.good,
        "old_logprobs": run.old_logprobs,
        "log": run.log.position(),
    }
    folder = run.log.folder
    try:
        checkpoint.save(folder.checkpoints, run.step, run.policy.save, state, run.config.train.keep_checkpoints)
    except checkpoint.SaveError as error:
        if needed:
            raise
        run.log.warn(f"step {run.step}: {error}. Free some space: the run goes on, and would resume from the one before")
        return
    if run.good and run.config.guard.action == "rewind":
        checkpoint.keep_good(folder.checkpoints, run.step)


def restore(run: Run, state: dict[str, Any]) -> None:
    """Continue from a checkpoint whose model the policy already holds."""
    checkpoint.same_data(state["data"], run.data)
    run.step = state["step"]
    run.tokens = state["tokens"]
    run.prompts.position = state["position"]
    run.source.load_state_dict(state["waiting"])
    run.objective.load_state_dict(state["objective"])
    run.policy.load_state_dict(state["policy"])
    for sampler in dict.fromkeys((run.sampler, run.evaluator)):
        sampler.load(run.policy, state["version"])
    run.learner.optimizer.load_state_dict(state["optimizer"])
    run.learner.optimizer.scale = state["lr_scale"]
    run.guard.load_state_dict(state["guard"])
    run.good = state["good"]
    run.old_logprobs = state["old_logprobs"]


def rewind(run: Run) -> bool:
    """Takes weights, optimizer and clip range of the last good checkpoint, and lowers the learning rate. False without one.

    Prompts, steps, versions and the log go on: a pass repeats no prompt, and no seed comes twice. Rollouts that wait (with
    rollout.delay) are dropped.
    """
    folder = checkpoint.good(run.log.folder.checkpoints)
    if folder is None:
        return False
    state = checkpoint.read_state(folder)
    run.policy.load(str(folder / checkpoint.MODEL))
    run.policy.load_state_dict(state["policy"])
    run.objective.load_state_dict(state["objective"])
    updates, scale = run.learner.optimizer.updates, run.learner.optimizer.scale
    run.learner.optimizer.load_state_dict(state["optimizer"])
    run.learner.optimizer.updates = updates
    run.learner.optimizer.scale = scale * run.config.guard.lr_factor
    run.source.drop()  # sampled by weights that are gone
    run.sampler.load(run.policy, run.sampler.version + 1)
    run.guard.rewound()
    run.good = True
    return True
