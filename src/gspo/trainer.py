"""The loop: sample, score, learn, sync, log. `train` is the whole of it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gspo import checkpoint
from gspo.config import Config
from gspo.evaluation import evaluate
from gspo.learner import Learner
from gspo.objective.mismatch import mismatch, std
from gspo.objective.replies import Replies
from gspo.old_policy import Groups, disagreement, estimate, needs_pass, noise_ratio, probe, recall
from gspo.policy_objective import PolicyObjective
from gspo.ports import Policy, Sampler
from gspo.progress import Progress
from gspo.rollout import (
    Learnable,
    PromptSource,
    Scorer,
    SynchronousSource,
    describe,
    learnable,
    reply_of,
    split,
    staleness,
)
from gspo.runlog import RunLog
from gspo.types import Group, Prompt, Sampling, Stats

Metrics = dict[str, Any]
SHOWN = 32  # held-out prompts of which each evaluation keeps a reply


@dataclass
class Run:
    """Everything that a training run is made of (build.py makes it). evaluator: samples held-out replies, with the policy's
    own weights. data: a fingerprint of the prompts. step: steps done.
    """

    config: Config
    policy: Policy
    reference: Policy | None
    sampler: Sampler
    evaluator: Sampler
    scorer: Scorer
    prompts: PromptSource
    held_out: Sequence[Prompt]
    source: SynchronousSource
    eval_sampling: Sampling
    learner: Learner
    objective: PolicyObjective
    log: RunLog
    screen: Progress
    decode: Callable[[int], str]
    data: str
    step: int = 0
    tokens: int = 0


def train(run: Run) -> Metrics:
    """Trains until the last step, or until asked to stop. Returns the last step's metrics."""
    train, metrics = run.config.train, {}
    groups = iter(run.source)
    with checkpoint.stop_signals(run.log.note) as stop:
        if run.step == 0 and evaluates(run):
            run.log.metrics({"step": 0} | held_out(run))
        while run.step < train.steps and not stop.asked:
            run.step += 1
            metrics = one_step(run, groups)
            if evaluates(run):
                metrics |= held_out(run)
            run.log.metrics(metrics)
            if run.step % train.save_every == 0 or run.step == train.steps or stop.asked:
                save(run)
    return metrics


def one_step(run: Run, source: Iterable[Group]) -> Metrics:
    """One rollout batch and its mini_batches x epochs updates. Returns the step's metrics."""
    begin = time.perf_counter()
    groups = list(islice(source, run.config.rollout.num_prompts))
    sampled = time.perf_counter()
    algorithm = run.config.algorithm
    batch = learnable(
        groups,
        run.objective.row,
        algorithm.scale_rewards or "group",
        run.config.rollout.mask_truncated_completions,
    )
    batch.counts["staleness"] = staleness([rollout for group in groups for rollout in group.rollouts], run.sampler.version)
    learned = learn(run, batch)
    run.sampler.load(run.policy, run.sampler.version + 1)
    trained = time.perf_counter()
    run.tokens += int(batch.counts["tokens"])
    watch(run, batch.counts)
    run.log.rollouts(rollout_lines(run, groups, batch))
    end = time.perf_counter()
    return (
        {"step": run.step}
        | batch.counts
        | learned
        | run.source.seconds
        | {
            "time/train": trained - sampled,
            "time/step": end - begin,
            "tokens_total": run.tokens,
            "tokens_per_second": batch.counts["tokens"] / (end - begin),
        }
    )


def learn(run: Run, batch: Learnable) -> Metrics:
    """The updates of one rollout batch; their metrics averaged."""
    algorithm, metrics = run.config.algorithm, {}
    groups = batch.groups
    if not groups:
        run.log.warn(f"step {run.step} had no group to train on: too few rewards were left, or all of a group were equal")
        return nothing_learned(run)
    seen = None
    if needs_pass(algorithm):
        groups, seen = recall(run.learner, groups, algorithm)
    known = [reply for group in batch.groups for reply in group]
    if run.source.delay:  # these rollouts are stale: numerics show on those of the present weights
        known = [reply_of(rollout, 0.0) for group in run.source.newest for rollout in group.rollouts]
        known, seen = probe(run.learner, known)
    if seen is not None:
        metrics = disagreement(known, seen)
    if run.objective.critic:
        groups = estimate(run.learner, groups, run.objective.critic, algorithm.scale_rewards or "batch")
    if run.reference is not None:
        groups = refer(run, groups, run.reference)
    parts = split(groups, algorithm.mini_batches or 1)
    updates: list[Metrics] = []
    noise = numerics = 0.0
    for _ in range(algorithm.epochs):
        for part in parts:
            run.screen.phase("updating", len(updates), len(parts) * algorithm.epochs)
            update, stats = run.learner.update(run.objective, part)
            run.objective.watch(stats)
            if not updates:
                metrics = metrics or first_look(stats)
                if run.source.delay and algorithm.old_logprobs == "sampler":
                    assert seen is not None
                    ratio = noise_ratio(known, seen, run.objective.row.level)
                    noise, numerics = std(ratio), run.objective.numerics(ratio, stats["advantage"])
                else:  # no update yet: the ratio is nothing but noise
                    noise, numerics = std(stats["ratio"]), update["clip_ratio/tokens"]
                floor(run, noise)
            updates.append(update)
    for name in updates[0]:
        metrics[name] = mean([update[name] for update in updates])
    metrics["clip_ratio/numerics"] = numerics
    metrics["clip_ratio/staleness"] = max(0.0, metrics["clip_ratio/tokens"] - numerics)
    metrics["lr"] = updates[-1]["lr"]
    metrics["updates/skipped"] = sum(update["updates/skipped"] for update in updates)
    return metrics | {"updates": len(updates)} | move_clip(run, noise)


def move_clip(run: Run, noise: float) -> Metrics:
    """The clip range of this step; a range that sets itself then moves."""
    if run.objective.clip is None:
        return {}
    found = dict(zip(("clip/epsilon", "clip/epsilon_high"), run.objective.clip))
    if run.objective.settle(noise):
        low, high = run.objective.clip
        run.log.warn(
            f"the clip range stands at the noise floor, {low:.1e}/{high:.1e}: fewer than algorithm.clip_target = "
            f"{run.config.algorithm.clip_target:g} of the tokens move more than rounding does. More updates a batch "
            "(mini_batches, epochs), a higher optimizer.lr or higher precision would lift it"
        )
    return found


def mean(values: list[Any]) -> Any:
    """The mean of numbers, or of lists of numbers, one by one."""
    if isinstance(values[0], list):
        return [mean(list(each)) for each in zip(*values)]
    there = [value for value in values if value == value]  # a share of no tokens is nan
    return sum(there) / len(there) if there else float("nan")


def refer(run: Run, groups: Groups, reference: Policy) -> Groups:
    """The same replies with their log-probabilities under the reference."""
    seen = iter(run.learner.read(reference, [reply for group in groups for reply in group]))
    return [[dataclasses.replace(reply, logp_ref=next(seen).logp) for reply in group] for group in groups]


def first_look(stats: Stats) -> Metrics:
    """The mismatch of sampler and trainer, from an update whose replies the same weights sampled."""
    found: Metrics = mismatch(stats["logp"], stats["logp_mu"], Replies.of(stats["length"]))
    differ = stats.get("overruled", stats.get("changed"))  # replaying the sampler's experts, the routers' own show it
    if differ is not None:
        found["moe/sampler_agreement"] = 1 - float(differ.mean())
    return found


def floor(run: Run, noise: float) -> None:
    """A warning where the ratio's own noise reaches the clip range."""
    reach = min(run.objective.clip or (float("inf"),))
    if noise >= reach and run.objective.row.level == "sequence" and run.objective.auto is None:
        remedy = "" if run.config.algorithm.old_logprobs == "recompute" else 'set algorithm.old_logprobs = "recompute", '
        run.log.warn(
            f"the noise floor of the ratio ({noise:.1e}) reaches the clip range ({reach:.1e}): rounding decides what is "
            f"clipped. Widen algorithm.epsilon and epsilon_high, {remedy}or use higher precision"
        )


def watch(run: Run, metrics: Metrics) -> None:
    """Warnings about steps that teach nothing, the first time that they occur."""
    if metrics["frac_reward_zero_std"] == 1:
        run.log.warn(
            f"step {run.step}: in every group all replies got the same reward, so nothing was learned from them. Is the "
            "task too easy or too hard, or does the reward never see what it looks for? Look at rollouts.jsonl"
        )
    if metrics["completions/clipped_ratio"] > 0.5:
        run.log.warn(
            f"step {run.step}: {metrics['completions/clipped_ratio']:.0%} of the replies reached "
            "rollout.max_completion_length: raise it, or have the model answer sooner (task.template_args = "
            "{enable_thinking = false} for models that think)"
        )


def nothing_learned(run: Run) -> Metrics:
    """The metrics of a step without updates: every name is there, without a value."""
    names = (
        "loss clip_ratio/low_mean clip_ratio/high_mean clip_ratio/region_mean clip_ratio/tokens clip_ratio/replies "
        "clip_ratio/positive clip_ratio/negative clip_ratio/numerics clip_ratio/staleness ratio/mean ratio/std "
        "ratio/noise_floor mismatch/kl mismatch/prob_mean mismatch/prob_max mismatch/beyond_2x mismatch/weight_mean "
        "mismatch/weight_std mismatch/ess entropy kl grad_norm lr"
    )
    return dict.fromkeys(names.split()) | {"updates": 0, "updates/skipped": 0.0}


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
    count = min(run.config.log.token_rollouts, len(rollouts))
    chosen = [i * len(rollouts) // count for i in range(count)]
    replies = [reply_of(rollouts[i], 0.0) for i in chosen]
    for i, reply, seen in zip(chosen, replies, run.learner.read(run.policy, replies) if replies else []):
        lines[i] |= {
            "tokens": [run.decode(token) for token in reply.tokens[reply.sampled].tolist()],
            "logp": reply.logp_mu.tolist(),
            "log_ratio": (seen.logp - reply.logp_mu).tolist(),  # how far this step's updates moved the token
        }
    return lines


def save(run: Run) -> None:
    """A checkpoint of everything that the next step depends on."""
    run.screen.phase("saving", 0, 1)
    state = {
        "optimiser": run.learner.optimiser.state_dict(),
        "position": run.prompts.position,
        "data": run.data,
        "version": run.sampler.version,
        "tokens": run.tokens,
        "waiting": run.source.state_dict(),
        "objective": run.objective.state_dict(),
        "policy": run.policy.state_dict(),
        "log": run.log.position(),
    }
    folder = run.log.folder
    checkpoint.save(folder.checkpoints, run.step, run.policy.save, state, run.config.train.keep_checkpoints)


def restore(run: Run, state: dict[str, Any]) -> None:
    """Continue from a checkpoint whose model the policy already holds."""
    checkpoint.same_data(state["data"], run.data)
    run.step = state["step"]
    run.tokens = state["tokens"]
    run.prompts.position = state["position"]
    run.source.load_state_dict(state["waiting"])
    run.objective.load_state_dict(state["objective"])
    run.policy.load_state_dict(state["policy"])
    run.sampler.load(run.policy, state["version"])
    run.learner.optimiser.load_state_dict(state["optimiser"])
