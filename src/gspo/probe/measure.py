"""Takes a run some updates further and measures, between them, what objectives make of completions that grow old.

The updates are the run's own: its algorithm, its optimizer, its batches. What is measured are other groups, which no update
sees: sampled once, at age 0, by the run's sampler. The gradient that is right at an age is taken from fresh groups of the
policy as it then is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gspo.learner.agreement import paired
from gspo.learner.learner import PolicyLearner
from gspo.learner.reading import read
from gspo.objective.completions import Completions
from gspo.objective.losses import level_ratio
from gspo.objective.mismatch import mismatch
from gspo.objective.routing import changed
from gspo.ports import Sampler
from gspo.probe.candidates import YOURS, Candidate, adjusted, candidates
from gspo.probe.gradients import Sketch, coefficients, of_group
from gspo.probe.merit import Products
from gspo.probe.ratios import by_length, clipped_shares, describe, exponent
from gspo.probe.walk import publish, updates
from gspo.rollout.credit import teaches, trained_on
from gspo.rollout.synchronous import SynchronousSource, sample_groups
from gspo.training.state import Run
from gspo.types import Completion, Group, Reading

SEED = 1 << 41  # far from those of training and of evaluation
SAME = 1e-5  # sampler and trainer whose ratio has a smaller spread say the same
FEWEST = 8  # groups that teach, for intervals of gradients


@dataclass(frozen=True)
class ProbePlan:
    """What is measured. groups: whose gradients are taken. fresh: groups at each age that the right gradient is taken from.
    ages: updates since sampling, ascending, from 0. updates: ages that the run trains at, 0 to updates - 1. warm: steps of
    the run before it begins.
    """

    groups: int
    fresh: int
    ages: tuple[int, ...]
    updates: int
    warm: int


@dataclass
class Age:
    """What was found at an age. ratios: of each way to read pi_old or to route. lengths: (T, sd, mean) of log s over T
    tokens. law: the exponent of its spread and its interval. volatility: share of the experts that changed, None where there
    are none. clipped: of each candidate, the shares of tokens where A < 0 and where A > 0. clip: the ranges in force.
    products: of each candidate.
    """

    age: int
    ratios: dict[str, dict[str, float | None]]
    lengths: list[tuple[int, float, float]]
    law: tuple[float, float, float] | None
    volatility: float | None
    clipped: dict[str, tuple[float, float]]
    clip: dict[str, tuple[float, float] | None]
    products: dict[str, Products] = field(default_factory=dict)


@dataclass
class Measured:
    """What a probe found. groups: that teach, of those measured. floor: what numerics alone do at age 0. notes: what could
    not be measured, and why.
    """

    candidates: list[Candidate]
    ages: list[Age]
    groups: int
    of: int
    mean_length: float
    reward: float
    floor: dict[str, float]
    notes: list[str]


def measure(run: Run, plan: ProbePlan) -> Iterator[Measured]:
    """What was found after each age: the same object, which grows."""
    bench = Bench(run, plan)
    walk = updates(run)
    per_step = (run.config.algorithm.mini_batches or 1) * run.config.algorithm.epochs
    for _ in range(plan.warm * per_step):
        next(walk)
    bench.begin()
    age = 0
    for wanted in plan.ages:
        for _ in range(wanted - age):
            next(walk)
        age = wanted
        bench.found.ages.append(bench.at(age))
        yield bench.found


class Bench:
    """The groups that are measured, and how."""

    found: Measured

    def __init__(self, run: Run, plan: ProbePlan) -> None:
        assert isinstance(run.learner, PolicyLearner), "a probe runs in one process"
        assert isinstance(run.source, SynchronousSource), "probed() sets no other"
        self.run, self.plan, self.learner, self.prompts = run, plan, run.learner, run.source.prompts
        self.policy, self.micro_batches = run.learner.policy, run.learner.micro_batches
        self.length = run.config.rollout.max_completion_length
        self.sketch = Sketch(self.policy.parameters())
        self.drawn = 0

    def sample(self, sampler: Sampler, count: int) -> list[Group]:
        """So many groups, scored, of the weights that the sampler has."""
        self.drawn += 1
        prompts = self.prompts.take(count, 1)
        sampling = dataclasses.replace(self.run.sampling, seed=SEED + 1000 * self.run.config.train.seed + self.drawn)
        n = self.run.config.rollout.num_generations
        return sample_groups(sampler, self.run.scorer, prompts, n, sampling, self.run.screen.phase)[0]

    def credited(self, groups: Sequence[Group], candidate: Candidate) -> list[list[Completion]]:
        """The completions of each group with this candidate's advantages."""
        return trained_on(groups, candidate.algorithm, self.run.config.rollout.mask_truncated_completions)[1]

    def readings(self, completions: Sequence[Completion], replay: bool = False) -> list[Reading]:
        """What the policy says of them now."""
        return read(self.policy, completions, self.micro_batches, routing=self.policy.sparse, replay=replay)

    def begin(self) -> None:
        """Samples the groups that are measured, and finds out what can be told apart here."""
        publish(self.run, (self.run.sampler, self.run.evaluator))
        self.groups = self.sample(self.run.sampler, self.plan.groups)
        own = Candidate(YOURS, self.run.config.algorithm)
        self.run.failures.check(self.groups, self.run.step)
        self.rows = [row for row in self.credited(self.groups, own) if row]
        self.completions = [completion for row in self.rows for completion in row]
        if not self.completions:
            raise ValueError("no group has two scored completions: there is nothing to measure")
        self.owner = [number for number, row in enumerate(self.rows) for _ in row]
        at_first = self.readings(self.completions)
        logp, mu, y = paired(self.completions, at_first)
        self.y, self.noise = y, (logp, mu)
        floor = mismatch(logp, mu, y)
        self.old = {"sampler": mu, "recompute": logp}
        self.routes: dict[str, list[Any]] = {}
        if self.policy.sparse and not getattr(self.policy, "unseen", ""):
            self.routes["R2"] = [reading.routes for reading in at_first]
        differ = float(describe(logp - mu, y)["sd_token"] or 0.0) > SAME
        if differ and self.routes and all(completion.routes is not None for completion in self.completions):
            self.routes["R3"] = [completion.routes for completion in self.completions]
        which = ["sampler", "recompute"] if differ else ["sampler"]
        setting = self.run.config.algorithm.old_logprobs
        decided = self.run.old_logprobs if setting == "auto" else setting
        every = candidates(self.run.config, which, ["none", *self.routes], decided)
        teaching = sum(teaches(row) for row in self.rows)
        rewards = [rollout.reward for group in self.groups for rollout in group.rollouts if rollout.reward is not None]
        self.found = Measured(
            every, [], teaching, len(self.groups), float(y.length.double().mean()), float(np.mean(rewards)), floor, []
        )
        if teaching < FEWEST:
            self.found.notes.append(
                f"{teaching} of {len(self.groups)} measured groups have rewards that differ: too few for gradients "
                f"({FEWEST} are needed), so nothing is said of directions. More --groups, or prompts that the model gets "
                "right now and then, would help"
            )
        if not self.policy.sparse:
            self.found.notes.append("the model has no experts: routing and Routing Replay have nothing to measure")

    def at(self, age: int) -> Age:
        """All that is measured at an age."""
        self.run.screen.phase("reading", age, self.plan.ages[-1])
        now = self.readings(self.completions)
        logp, _, _ = paired(self.completions, now)
        likely = {name: old for name, old in self.old.items() if name == "sampler" or "recompute" in self._views()}
        ratios = {name: describe(logp - old, self.y) for name, old in likely.items()}
        read_as = {"none": logp}
        for kind, routes in self.routes.items():
            replayed = [dataclasses.replace(c, routes=each) for c, each in zip(self.completions, routes)]
            read_as[kind] = paired(replayed, self.readings(replayed, replay=True))[0]
            ratios[kind] = describe(read_as[kind] - self.old["recompute"], self.y)
        objectives = {candidate.name: candidate.objective(self.length) for candidate in self.found.candidates}
        clipped = {}
        for candidate in self.found.candidates:
            objective, log_pi, old = objectives[candidate.name], read_as[candidate.replay], self.old[candidate.likelihoods]
            noise = level_ratio(candidate.row.level, self.noise[0], self.old[candidate.likelihoods], self.y)
            adjusted(objective, self.y.spread(level_ratio(candidate.row.level, log_pi, old, self.y)), self._signs(), noise)
            views = {"logp_old": old, "logp_mu": self.noise[1]}
            clipped[candidate.name] = clipped_shares(objective, log_pi, self.y, views)
        moved = self.routes.get("R2")
        found = Age(
            age,
            ratios,
            by_length(logp - self.old["sampler"], self.y),
            exponent(logp - self.old["sampler"], self.y, self.owner),
            None if moved is None else self._volatility(moved, now),
            clipped,
            {name: objective.clip for name, objective in objectives.items()},
        )
        if self.found.groups >= FEWEST:
            found.products = self._products(objectives)
        return found

    def _views(self) -> set[str]:
        return {candidate.likelihoods for candidate in self.found.candidates}

    def _signs(self) -> Tensor:
        """The advantage of each token, for its sign."""
        A = [torch.as_tensor(c.advantage, dtype=torch.float32).expand(len(c.logp_mu)) for c in self.completions]
        return torch.cat(A)

    def _volatility(self, before: Sequence[Tensor], now: Sequence[Reading]) -> float:
        shares = []
        for completion, old, reading in zip(self.completions, before, now):
            assert reading.routes is not None
            at = completion.sampled.nonzero()[:, 0] - 1  # the tokens that the sampled ones were predicted from
            shares.append(changed(old[at], reading.routes[at]).mean(1))
        return float(torch.cat(shares).mean())

    def _products(self, objectives: Any) -> dict[str, Products]:
        """Of each candidate's gradients, and of the right ones of its family."""
        publish(self.run, (self.run.sampler, self.run.evaluator))
        fresh = self.sample(self.run.evaluator, self.plan.fresh)
        families: dict[str, Candidate] = {}
        for candidate in self.found.candidates:
            families.setdefault(candidate.family, candidate)
        right = self._right(fresh, families, objectives)
        mine = self._mine(objectives)
        truth = {name: r @ r.T for name, r in right.items()}
        return {
            candidate.name: Products(g @ g.T, g @ right[candidate.family].T, truth[candidate.family])
            for candidate in self.found.candidates
            for g in (mine[candidate.name],)
        }

    def _right(self, fresh: Sequence[Group], families: dict[str, Candidate], objectives: Any) -> dict[str, Any]:
        """The gradients on policy of the fresh groups, by family: [R, D]."""
        rows = {name: self.credited(fresh, candidate) for name, candidate in families.items()}
        wanted = {name: (name, coefficients(objectives[c.name], on_policy=True)) for name, c in families.items()}
        found: dict[str, list[Tensor]] = {name: [] for name in families}
        for number in range(len(fresh)):
            self.run.screen.phase("gradients on policy", number, len(fresh))
            views = {name: each[number] for name, each in rows.items()}
            self._add(found, views, wanted, False)
        return {name: torch.stack(each).double().numpy() for name, each in found.items()}

    def _mine(self, objectives: Any) -> dict[str, Any]:
        """Each candidate's gradients of the measured groups: [M, D]."""
        found: dict[str, list[Tensor]] = {candidate.name: [] for candidate in self.found.candidates}
        of_view = {c.view: self.credited(self.groups, c) for c in self.found.candidates}
        kept = [number for number, row in enumerate(next(iter(of_view.values()))) if row]
        before = Completions.of(self.y.length)
        starts = np.cumsum([0, *before.length.tolist()]).tolist()
        for place, number in enumerate(kept):
            self.run.screen.phase("gradients", place, len(kept))
            at = [i for i, owner in enumerate(self.owner) if owner == place]
            for replay in ("none", *self.routes):
                here = [c for c in self.found.candidates if c.replay == replay]
                views = {c.view: self._view(of_view[c.view][number], at, starts, c, replay) for c in here}
                wanted = {c.name: (c.view, coefficients(objectives[c.name])) for c in here}
                if here:
                    self._add(found, views, wanted, replay != "none")
        return {name: torch.stack(each).double().numpy() for name, each in found.items()}

    def _view(
        self, row: Sequence[Completion], at: Sequence[int], starts: Sequence[int], candidate: Candidate, replay: str
    ) -> list[Completion]:
        """A group's completions with a candidate's likelihoods and routes."""
        old = self.old[candidate.likelihoods]
        return [
            dataclasses.replace(
                completion,
                logp_old=old[starts[i] : starts[i + 1]],
                routes=None if replay == "none" else self.routes[replay][i],
            )
            for i, completion in zip(at, row)
        ]

    def _add(self, found: dict[str, list[Tensor]], views: Any, wanted: Any, replay: bool) -> None:
        """A group's gradients; zeros where it teaches nothing."""
        if not any(teaches(each) for each in views.values()):
            for name in wanted:
                found[name].append(torch.zeros(self._width()))
            return
        for name, gradient in of_group(
            self.policy, views, wanted, self.sketch, self.micro_batches.max_tokens, replay
        ).items():  # fmt: skip
            found[name].append(gradient)

    def _width(self) -> int:
        return sum(p.numel() for p in self.sketch.parameters) if self.sketch.exact else self.sketch.size
