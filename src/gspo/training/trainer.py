"""The loop: sample, score, learn, sync, log. `train` is the whole of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from gspo.ports import SamplerError
from gspo.rollout.credit import Learnable, completion_of, learnable
from gspo.rollout.evaluation import evaluate
from gspo.rollout.metrics import describe, in_parts, staleness
from gspo.runs import checkpoint
from gspo.training.state import Metrics, Run, rewind, save
from gspo.training.step import learn
from gspo.types import Group

SHOWN = 32  # held-out prompts of which each evaluation keeps a completion


def train(run: Run) -> Metrics:
    """Trains until the last step, or until asked to stop. Returns the last step's metrics."""
    train = run.config.train
    metrics: Metrics = {}
    groups = iter(run.source)
    with checkpoint.stop_signals(run.log.note) as stop:
        if run.step == 0 and evaluates(run):
            run.log.metrics({"step": 0} | held_out(run))
        while run.step < train.steps and not stop.asked:
            metrics, over = advance(run, groups, run.config.rollout.num_prompts)
            if over:
                break
            if run.step % train.save_every == 0 or run.step == train.steps or stop.asked:
                save(run, needed=run.step == train.steps or stop.asked)
    return metrics


def advance(run: Run, groups: Iterable[Group], count: int | None = None) -> tuple[Metrics, bool]:
    """One step on `count` groups (None: on all), with all that belongs to it but the checkpoint. Returns its metrics, and
    whether the run ends here: it collapsed.
    """
    with saved_before_loss(run):
        metrics = one_step(run, groups, count)
    lost = synced(run, metrics)
    collapsed = guarded(run, metrics)
    run.log.metrics(metrics)
    with saved_before_loss(run):
        if lost is not None:
            raise lost
    return metrics, bool(collapsed) and act(run, collapsed)


@contextmanager
def saved_before_loss(run: Run) -> Iterator[None]:
    """Saves what is done, where the sampler cannot go on, and lets the error end the run."""
    try:
        yield
    except SamplerError:
        if run.step:
            save(run)
        raise


def synced(run: Run, metrics: Metrics) -> SamplerError | None:
    """Gives the samplers the new weights, evaluates if it is time to, and adds both to the step's metrics. Returns what
    went wrong: the step itself is done.
    """
    begin = time.perf_counter()
    version, lost = run.sampler.version + 1, None
    try:
        for sampler in dict.fromkeys((run.sampler, run.evaluator)):
            sampler.load(run.policy, version)
        seconds = time.perf_counter() - begin
        whole = metrics["time/step"] + seconds
        metrics |= {"time/sync": seconds, "time/step": whole, "tokens_per_second": metrics["tokens"] / whole}
        if evaluates(run):
            metrics |= held_out(run)
    except SamplerError as error:
        lost = error
    return lost


def guarded(run: Run, metrics: Metrics) -> str:
    """Shows the step to the guard: its metrics and warnings. Returns why the run has collapsed, "" where it has not."""
    verdict = run.guard.see(metrics)
    metrics |= verdict.metrics
    run.good = verdict.good
    for text in verdict.warnings:
        run.log.warn(text)
    return verdict.collapsed


def act(run: Run, collapsed: str) -> bool:
    """What [guard] action asks for on a collapse. Returns whether the run ends here."""
    guard = run.config.guard
    if guard.action == "warn":
        return False
    if guard.action == "rewind" and run.guard.rewinds < guard.max_rewinds and rewind(run):
        run.log.warn(
            f"step {run.step}: collapsed ({collapsed}). Back to the weights of the last good checkpoint, with the learning "
            f"rate times {guard.lr_factor:g}; rewind {run.guard.rewinds} of {guard.max_rewinds}"
        )
        save(run)
        return False
    why = "" if guard.action == "stop" else " No good checkpoint or rewind is left."
    run.log.warn(f"step {run.step}: stopped, since the run collapsed ({collapsed}).{why} The last checkpoint is kept")
    save(run)
    return True


def one_step(run: Run, source: Iterable[Group], count: int | None) -> Metrics:
    """One rollout batch of `count` groups and its mini_batches x epochs updates. Returns the step's metrics."""
    begin = time.perf_counter()
    groups = list(islice(source, count))
    run.step += 1
    sampled = time.perf_counter()
    truncated = run.config.rollout.mask_truncated_completions
    batch = learnable(groups, run.objective.row, run.config.algorithm, truncated)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    batch.counts |= {"staleness": staleness(rollouts, run.sampler.version), "rollouts/in_parts": in_parts(rollouts)}
    batch.counts |= run.source.seconds
    learned = learn(run, batch)
    trained = time.perf_counter()
    run.tokens += int(batch.counts["tokens"])
    watch(run, batch.counts)
    run.log.rollouts(rollout_lines(run, groups, batch))
    end = time.perf_counter()
    return (
        {"step": run.step}
        | batch.counts
        | learned
        | {
            "time/train": trained - sampled,
            "time/step": end - begin,
            "tokens_total": run.tokens,
        }
    )


def watch(run: Run, metrics: Metrics) -> None:
    """Warnings about steps that teach nothing, the first time that they occur."""
    if metrics["frac_reward_zero_std"] == 1:
        run.log.warn(
            "in every group of a step all completions got the same reward, so nothing was learned from them. Is the "
            "task too easy or too hard, or does the reward never see what it looks for? Look at rollouts.jsonl"
        )
    if metrics["completions/clipped_ratio"] > 0.5:
        run.log.warn(
            "more than half of a step's completions reached rollout.max_completion_length: raise it, or have the model end "
            "sooner (task.template_args = {enable_thinking = false} for models that think)"
        )


def evaluates(run: Run) -> bool:
    """Whether this step (0: before the first) ends with an evaluation."""
    every = run.config.eval.every
    return every > 0 and (run.step % every == 0 or run.step == run.config.train.steps)


def held_out(run: Run) -> Metrics:
    """Accuracy on the held-out prompts. Every evaluation draws with the same seed, so that differences are paired."""
    metrics, groups = evaluate(
        run.evaluator,
        run.scorer,
        run.held_out,
        run.config.eval.num_generations,
        run.eval_sampling,
        run.config.reward.correct_at,
        run.screen.phase,
    )
    shown = [{"step": run.step} | describe(group.rollouts[0]) for group in groups[:SHOWN]]
    run.log.evaluations(shown if run.config.log.rollouts else [])
    return metrics


def rollout_lines(run: Run, groups: Sequence[Group], batch: Learnable) -> list[Metrics]:
    """One line a rollout for rollouts.jsonl; evenly spaced ones with what the step did to each token."""
    if not run.config.log.rollouts:
        return []
    lines = []
    advantages = iter(batch.advantages)
    for index, group in enumerate(groups):
        for rollout in group.rollouts:
            lines.append({"step": run.step, "group": index, "advantage": next(advantages)} | describe(rollout))
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    answered = [i for i, rollout in enumerate(rollouts) if rollout.sampled.any()]  # an episode may fail before that
    count = min(run.config.log.token_rollouts, len(answered))
    chosen = [answered[i * len(answered) // count] for i in range(count)]
    completions = [completion_of(rollouts[i], 0.0) for i in chosen]
    for i, completion, seen in zip(chosen, completions, run.learner.read(run.policy, completions) if completions else []):
        lines[i] |= {
            "tokens": [run.decode(token) for token in completion.tokens[completion.sampled].tolist()],
            "logp": completion.logp_mu.tolist(),
            "log_ratio": (seen.logp - completion.logp_mu).tolist(),  # how far this step's updates moved the token
        }
        if completion.turn is not None:
            lines[i]["token_turns"] = completion.turn.tolist()
    return lines
