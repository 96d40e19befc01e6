"""Takes a run some updates further and measures, between them, what objectives make of completions that grow old.

The updates are the run's own: its algorithm, its optimizer, its batches. What is measured are other groups, which no update
sees: sampled once, at age 0, by the run's sampler. The gradient that is right at an age is taken from fresh groups of the
policy as it then is. A clip range that sets itself is set from the step before, on groups of that step, as in a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo.interfaces import Sampler
from gspo.learner.agreement import paired
from gspo.learner.learner import PolicyLearner
from gspo.learner.objective import PolicyObjective
from gspo.objective.mismatch import mismatch
from gspo.rollout.credit import has_signal
from gspo.rollout.synchronous import SynchronousSource, sample_groups
from gspo.training import likelihoods
from gspo.training.metrics import check_rewards
from gspo.training.state import Run
from gspo.types import Group
from probe.candidates import Candidate, candidates
from probe.gradients import Sketch, coefficients, of_group
from probe.merit import Products
from probe.ratios import by_length, clipped_shares, describe, exponent
from probe.stale import PLAIN, Reader, Stale
from probe.walk import EMPTY, publish, updates

SEED = 1 << 41  # far from those of training and of evaluation
SAME = 1e-5  # sampler and trainer whose ratio has a smaller spread say the same
FEWEST = 8  # groups that teach, for intervals of gradients


@dataclass(frozen=True)
class ProbePlan:
    """What is measured. groups: whose gradients are taken. fresh: groups at each age that the right gradient is taken from.
    ages: updates since sampling, ascending, from 0. updates: ages that the run trains at, 0 to updates - 1. warm: steps of
    the run before it begins, the last of which sets ranges that set themselves. teaching: the run refills its batches.
    """

    groups: int
    fresh: int
    ages: tuple[int, ...]
    updates: int
    warm: int
    teaching: bool = False


@dataclass
class Age:
    """What was found at an age. ratios: of each way to read pi_old or to route. lengths: (T, sd, mean) of log s over T
    tokens. law: the exponent of its spread and its interval. volatility: share of the experts of age 0 that are not chosen
    now. agreement: share of the sampler's experts that are. Both None where there are none. clipped: of each candidate, the
    shares of tokens where A < 0 and where A > 0. products: of each candidate.
    """

    age: int
    ratios: dict[str, dict[str, float | None]]
    lengths: list[tuple[int, float, float]]
    law: tuple[float, float, float] | None
    volatility: float | None
    agreement: float | None
    clipped: dict[str, tuple[float, float]]
    products: dict[str, Products] = field(default_factory=dict)


@dataclass
class Measured:
    """What a probe found. groups: that teach, of those measured. floor: what numerics alone do at age 0. clip: the range of
    each candidate. notes: what could not be measured, and why.
    """

    candidates: list[Candidate]
    ages: list[Age]
    groups: int
    of: int
    mean_length: float
    reward: float
    floor: dict[str, float]
    clip: dict[str, tuple[float, float] | None]
    notes: list[str]


def measure(run: Run, plan: ProbePlan) -> Iterator[Measured]:
    """What was found after each age: the same object, which grows."""
    bench, walk = Bench(run, plan), updates(run)
    per_step = run.config.algorithm.mini_batches * run.config.algorithm.epochs
    for _ in range((plan.warm - 1) * per_step):
        next(walk, False)
    bench.rehearse(walk, per_step)
    found, age = bench.begin(), 0
    for wanted in plan.ages:
        if not all(next(walk, False) for _ in range(wanted - age)):
            found.notes.append(
                f"{EMPTY + 1} batches in a row had no group to train on, since too few rewards were left or all of a group "
                f"were equal: there are no updates, and ages beyond {age} were not measured"
            )
            yield found
            return
        age = wanted
        found.ages.append(bench.at(age))
        yield found


class Bench:
    """The groups that are measured, and how."""

    def __init__(self, run: Run, plan: ProbePlan) -> None:
        assert isinstance(run.learner, PolicyLearner), "a probe runs in one process"
        assert isinstance(run.source, SynchronousSource), "probed() sets no other"
        self.run, self.plan, self.learner, self.prompts = run, plan, run.learner, run.source.prompts
        self.policy, self.micro_batches = run.learner.policy, run.learner.micro_batches
        masked = run.config.rollout.mask_truncated_completions
        self.reader = Reader(self.policy, self.micro_batches, masked)
        self.sketch = Sketch(self.policy.parameters())
        self.drawn = self.done = 0  # batches, and steps of the run when the groups were sampled that grow old
        self.candidates: list[Candidate] = []
        self.objectives: dict[str, PolicyObjective] = {}

    def sample(self, sampler: Sampler, count: int) -> list[Group]:
        """So many groups, scored, of the weights that the sampler has. With refill those that teach."""
        self.drawn += 1
        prompts = self.prompts.take(count, 1)
        sampling = dataclasses.replace(self.run.sampling, seed=SEED + 1000 * self.run.config.train.seed + self.drawn)
        n = self.run.config.rollout.num_generations
        # One task at all ages, where rewards change with the step.
        self.run.scorer.at(self.done, self.run.config.train.steps)
        groups, _ = sample_groups(sampler, self.run.scorer, prompts, n, sampling, self.run.screen.phase)
        check_rewards(self.run, groups)
        if not self.plan.teaching:
            return groups
        rows = self.reader.credited(groups, self.run.config.algorithm)
        return [group for group, row in zip(groups, rows) if has_signal(row)] or groups[:1]

    def stale(self) -> Stale:
        """Groups of the weights of now, that will grow old."""
        self.done = self.run.step
        publish(self.run, (self.run.sampler, self.run.evaluator))
        return Stale(self.reader, self.sample(self.run.sampler, self.plan.groups), self.run.config.algorithm)

    def rehearse(self, walk: Iterator[bool], per_step: int) -> None:
        """One step of the run: finds out what can be told apart here, and sets the ranges that set themselves."""
        batch = self.stale()
        differ = float(describe(batch.old["recompute", PLAIN] - batch.mu, batch.y)["sd_token"] or 0.0) > SAME
        decided = likelihoods.old_logprobs(self.run, batch.completions)
        replays = [PLAIN, *(kind for kind in batch.routes if differ or kind != "R3")]
        which = ["sampler", "recompute"] if differ else ["sampler"]
        self.candidates = candidates(self.run.config, which, replays, decided)
        length = self.run.config.rollout.max_completion_length
        self.objectives = {each.name: each.objective(length) for each in self.candidates}
        auto = [(each, clip) for each in self.candidates if (clip := self.objectives[each.name].auto) is not None]
        for age in range(per_step):
            self.run.screen.phase("rehearsing", age, per_step)
            now = {kind: batch.logp(kind) for kind in {each.replay for each, _ in auto}}
            for each, clip in auto:
                clip.observe(batch.spread(each, batch.ratios(each, now[each.replay])), batch.signs())
            next(walk, False)
        for each, clip in auto:
            clip.update_range(batch.ratios(each, batch.again[each.replay]))

    def begin(self) -> Measured:
        """Samples the groups that are measured."""
        self.batch = batch = self.stale()
        floor = mismatch(batch.old["recompute", PLAIN], batch.mu, batch.y)
        teaching = sum(has_signal(row) for row in batch.rows)
        rewards = [rollout.reward for group in batch.groups for rollout in group.rollouts if rollout.reward is not None]
        clip = {name: objective.clip for name, objective in self.objectives.items()}
        length, reward = float(batch.y.length.double().mean()), float(np.mean(rewards))
        self.enough = teaching >= FEWEST
        notes = [] if self.enough else [
            f"{teaching} of {len(batch.groups)} measured groups have rewards that differ: too few for gradients "
            f"({FEWEST} are needed), so nothing is said of directions. More groups, or prompts that the model gets right "
            "now and then, would help"
        ]  # fmt: skip
        if not self.policy.sparse:
            notes.append("the model has no experts: routing and Routing Replay have nothing to measure")
        if self.plan.teaching:
            notes.append("the run refills its batches: groups whose rewards are all equal were left out")
        return Measured(self.candidates, [], teaching, len(batch.groups), length, reward, floor, clip, notes)

    def at(self, age: int) -> Age:
        """All that is measured at an age."""
        self.run.screen.phase("reading", age, self.plan.ages[-1])
        batch = self.batch
        now = self.reader.read(batch.completions)
        logp = {PLAIN: paired(batch.completions, now)[0]} | {kind: batch.logp(kind) for kind in batch.routes}
        ratios = {"sampler": describe(logp[PLAIN] - batch.mu, batch.y)}
        if any(candidate.likelihoods == "recompute" for candidate in self.candidates):
            ratios["recompute"] = describe(logp[PLAIN] - batch.old["recompute", PLAIN], batch.y)
        for kind in {candidate.replay for candidate in self.candidates} - {PLAIN}:
            ratios[kind] = describe(logp[kind] - batch.old["recompute", kind], batch.y)
        clipped = {}
        # At age 0 only numerics move a ratio: those of micro-batches of another size, as a run's updates have them.
        read = batch.again if age == 0 else logp
        for each in self.candidates:
            given = {"logp_old": batch.old[each.likelihoods, each.replay], "logp_mu": batch.mu}
            clipped[each.name] = clipped_shares(self.objectives[each.name], read[each.replay], batch.y, given)
        moved = logp[PLAIN] - batch.mu
        law = exponent(moved, batch.y, batch.owner)
        found = Age(age, ratios, by_length(moved, batch.y), law, batch.volatility(now), batch.agreement(now), clipped)
        if self.enough:
            found.products = self.products()
        return found

    def products(self) -> dict[str, Products]:
        """Of each candidate's gradients, and of the right ones of its family."""
        publish(self.run, (self.run.sampler, self.run.evaluator))
        fresh = self.sample(self.run.evaluator, self.plan.fresh)
        families: dict[str, Candidate] = {}
        for candidate in self.candidates:
            families.setdefault(candidate.family, candidate)
        rows = {name: self.reader.credited(fresh, each.algorithm) for name, each in families.items()}
        right = self.gradients(
            "gradients on policy", rows,
            {name: (name, coefficients(self.objectives[each.name], on_policy=True)) for name, each in families.items()},
        )  # fmt: skip
        mine: dict[str, Any] = {}
        for replay in dict.fromkeys(candidate.replay for candidate in self.candidates):
            here = [candidate for candidate in self.candidates if candidate.replay == replay]
            views = {each.view: self.batch.view(each) for each in here}
            wanted = {each.name: (each.view, coefficients(self.objectives[each.name])) for each in here}
            mine |= self.gradients("gradients", views, wanted, replay != PLAIN)
        truth = {name: r @ r.T for name, r in right.items()}
        return {
            each.name: Products(g @ g.T, g @ right[each.family].T, truth[each.family])
            for each in self.candidates
            for g in (mine[each.name],)
        }

    def gradients(
        self, phase: str, views: Mapping[str, Sequence[Any]], wanted: Mapping[str, Any], replay: bool = False
    ) -> dict[str, Any]:
        """The gradient of each group by each that is wanted, [groups, D]; 0 where a group teaches nothing. views: the
        completions of each group, by what reads them. Where memory does not suffice, micro-batches are halved.
        """
        found: dict[str, list[Tensor]] = {name: [] for name in wanted}
        count = len(next(iter(views.values())))
        for number in range(count):
            self.run.screen.phase(phase, number, count)
            here = {name: rows[number] for name, rows in views.items()}
            if not any(has_signal(row) for row in here.values()):
                for kept in found.values():
                    kept.append(torch.zeros(self.sketch.width))
                continue

            def work(here: Any = here) -> dict[str, Tensor]:
                return of_group(self.policy, here, wanted, self.sketch, self.micro_batches.max_tokens, replay)

            first = next(iter(here.values()))
            for name, gradient in self.micro_batches.attempt(work, first, self.policy.shares_prompts).items():
                found[name].append(gradient)
        return {name: torch.stack(each).double().numpy() for name, each in found.items()}
