"""The learners of gspo.interfaces: a policy, its optimizer, the objective, and the current batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gspo.learner import token_marks
from gspo.learner.agreement import disagreement, first_look, other_experts, paired
from gspo.learner.fit_micro_batches import Meter, make_room
from gspo.learner.interfaces import Objective, Policy
from gspo.learner.memory import MicroBatches, Readers, outside_of_passes
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from gspo.learner.scoring import collected, read, read_as_sampled, read_here, where_read
from gspo.learner.update import Updater, active
from gspo.learner.weights import PolicyWeights
from gspo.objective.completions import Completions
from gspo.objective.losses import level_ratio
from gspo.objective.mismatch import std
from gspo.objective.ppo import gae, whiten
from gspo.runs.checkpoint import LEARNER, MODEL, read_state
from gspo.types import Agreement, Completion, Metrics, Reading, Stats, Update

MOMENTS = "optimizer"  # AdamW's moments as shards, loadable on any number of ranks
PROBED = 32  # completions for the sampler-trainer comparison, unless all are read anyway


class LocalLearner:
    """A policy, its optimizer, and the `objective` that they minimise."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        objective: Objective,
        micro_batches: MicroBatches,
        *,
        replay: bool = False,
    ) -> None:
        self.policy, self.optimizer, self.objective = policy, optimizer, objective
        self.micro_batches = micro_batches
        self.updater = Updater(policy, optimizer, micro_batches, replay)
        self.mini_batches: list[list[Completion]] = []
        self.at: list[tuple[int, int]] = []  # (mini-batch, index) of each completion that updates read
        self.readers: list[Readers] = []  # per mini-batch: which rank reads which of them
        self.proven = False  # whether sharded forward passes use the updated weights
        self.meter = Meter() if policy.device.type == "cuda" else None  # CPU memory is shared

    def override_lr(self, lr: float | None) -> None:
        """Replaces the learning rate (gspo.interfaces.Learner)."""
        self.optimizer.lr_override = lr

    def fit(self, longest: int, vocabulary: int) -> None:
        """Shrinks micro-batches until they fit into the memory of all ranks (fit_micro_batches.py)."""
        if self.meter is not None:
            make_room(self.policy, self.optimizer, self.micro_batches, self.meter, longest, vocabulary)

    def take(self, mini_batches: Sequence[Sequence[Completion]]) -> None:
        """Sets the batch of the next updates, and which rank reads which completion until it is replaced."""
        self.mini_batches = [list(part) for part in mini_batches]
        read, share = [active(self.objective, part) for part in self.mini_batches], self.policy.shares_prompts
        self.at = [(i, j) for i, places in enumerate(read) for j in places]
        parts = [[part[j] for j in places] for part, places in zip(self.mini_batches, read)]
        self.readers = [self.micro_batches.readers(part, share) for part in parts]
        if self.policy.sparse and self.mini_batches:
            self._fill(where_read(self._read_by_updates(), self._all_readers(), self.micro_batches.ranks))

    def update(self, number: int) -> Update:
        """One optimizer step on the mini-batch with this index. Only rank 0 gets the metrics of what was read."""
        return Update(self._update(number)[0])

    def _update(self, number: int) -> tuple[Metrics, Stats]:
        metrics, stats = self.updater.update(self.objective, self.mini_batches[number], self.readers[number])
        if self.micro_batches.ranks.size > 1 and not self.proven and any(self.readers[number]):
            self.policy.prove(self.optimizer.parameters)
            self.proven = True
        if stats:
            self.objective.watch(stats)
        return metrics, stats

    def _read_by_updates(self) -> list[Completion]:
        """The completions that updates read, of all mini-batches."""
        return [self.mini_batches[i][j] for i, j in self.at]

    def _all_readers(self) -> Readers:
        """Which rank reads which of `_read_by_updates`, the same as in the updates."""
        every: Readers = [[] for _ in range(self.micro_batches.ranks.size)]
        before = 0
        for readers in self.readers:
            for mine, more in zip(every, readers):
                mine += [before + i for i in more]
            before += sum(map(len, readers))
        return every

    def _fill(self, completions: Sequence[Completion]) -> None:
        """Replaces the completions that updates read by these."""
        for (i, j), completion in zip(self.at, completions):
            self.mini_batches[i][j] = completion

    def read(self, completions: Sequence[Completion]) -> list[Tensor]:
        """The log-probabilities of the sampled tokens of a few completions, each [|y|]; [] on ranks other than 0."""
        return [reading.logp for reading in read(self.policy, completions, self.micro_batches)]

    def publish(self, version: int) -> PolicyWeights:
        """A handle on the current weights."""
        return PolicyWeights(self.policy, version, self.micro_batches)

    def save(self, folder: Path) -> None:
        """Writes `folder`/model in Hugging Face format and, beside it, all other state of the next update."""
        ranks = self.micro_batches.ranks
        with outside_of_passes("while it wrote a checkpoint", ranks):
            self.policy.save(str(folder / MODEL))
            if ranks.size > 1 and self.optimizer.adamw.state:
                self.policy.save_moments(self.optimizer.adamw, str(folder / MOMENTS))
        state = {
            "optimizer": self.optimizer.state_dict(moments=ranks.size == 1),
            "lr_scale": self.optimizer.scale,
            "objective": self.objective.state_dict(),
            "policy": self.policy.state_dict(),
        }
        problem = ""
        if ranks.number == 0:
            try:
                torch.save(state, folder / LEARNER)
            except (OSError, RuntimeError) as error:
                if ranks.size == 1:
                    raise
                problem = str(error)
        if problem := ranks.gathered(problem)[0]:
            raise OSError(problem)

    def resume(self, folder: Path) -> None:
        """Restores what `save` wrote; the policy must already hold the model. Raises RuntimeError for a damaged file."""
        state = read_state(folder, LEARNER)
        self._load(state, folder)
        self.optimizer.scale = state["lr_scale"]

    def rewind(self, folder: Path, lr_factor: float) -> None:
        """Restores what `save` wrote, and the model. The update count continues; lr_factor multiplies the learning rate."""
        updates, scale = self.optimizer.updates, self.optimizer.scale
        state = read_state(folder, LEARNER)
        self.policy.load(str(folder / MODEL))
        self._load(state, folder)
        self.optimizer.updates, self.optimizer.scale = updates, scale * lr_factor

    def _load(self, state: Mapping[str, Any], folder: Path) -> None:
        self.policy.load_state_dict(state["policy"])
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if (folder / MOMENTS).exists():
            self.policy.load_moments(self.optimizer.adamw, str(folder / MOMENTS))
            self.optimizer.take_moments()


class PolicyLearner(LocalLearner):
    """A learner for an algorithm of the table.

    frozen: policies that are not trained, each by the column of a completion that its log-probabilities fill: the reference
    of the KL term (logp_ref), the teacher (logp_teacher). scale: "batch" whitens a critic's advantages over all tokens.
    seed: of Clip-Cov's draws.
    """

    objective: PolicyObjective

    def __init__(
        self,
        policy: Policy,
        optimizer: Optimizer,
        objective: PolicyObjective,
        micro_batches: MicroBatches,
        *,
        router_replay: str = "none",
        frozen: Mapping[str, Policy] = {},
        scale: str = "batch",
        seed: int = 0,
    ) -> None:
        super().__init__(policy, optimizer, objective, micro_batches, replay=router_replay != "none")
        self.router_replay, self.frozen, self.scale, self.seed = router_replay, frozen, scale, seed
        self._disagreement: Metrics | None = None  # of sampler and trainer, once a forward pass has measured it
        self._fresh: tuple[Tensor, Tensor, Completions] | None = None  # log pi and log mu of fresh completions
        self._noise: Tensor | None = None  # ratios that only numerics moved; None until an update of a batch reads any

    @property
    def clip(self) -> tuple[float, float] | None:
        """The current clip range."""
        return self.objective.clip

    def enter(self, temperature: float, max_completion_length: int) -> None:
        """Sets the sampling settings of all completions that are read or trained on from now on."""
        for policy in (self.policy, *self.frozen.values()):
            policy.temperature = temperature
        self.objective.max_completion_length = max_completion_length

    def prepare(
        self, mini_batches: Sequence[Sequence[Completion]], recompute: bool, fresh: Sequence[Completion] = ()
    ) -> None:
        """Sets a batch and computes what its updates need: pi_old's log-probabilities (by a forward pass if `recompute`) and
        experts (by one for R2), the critic's values and advantages, the log-probabilities of the reference and of the
        teacher, marks of tokens. fresh: completions of the current weights, if the batch is stale.
        """
        self.take(mini_batches)
        self.objective.begin([completion for part in mini_batches for completion in part])
        self._disagreement = self._fresh = self._noise = None
        others = bool(fresh)
        late = self.at[0][0] if self.at else 0  # that many updates read nothing, but AdamW's momentum may move the weights
        if recompute or self.router_replay == "R2":
            self._recall(recompute, late > 0)
        elif late and not fresh:
            fresh = [mini_batches[i][j] for i, j in self.at if i == late]
        if fresh and self.at:
            some, readings = self._probe(fresh)
            self._disagreement = disagreement(some, readings) if readings else {}
            if readings and not recompute:
                logp, logp_mu, y = paired(some, readings)
                self._fresh = self.objective.at_length_of_batch(logp, logp_mu, y) if others else logp, logp_mu, y
        if self.objective.critic:
            self._estimate(self.objective.critic)
        for column, policy in self.frozen.items():
            self._read_with(policy, column)
        if self.at and (self.objective.clip_cov or self.objective.kl_cov):
            ranks, seed = self.micro_batches.ranks, (self.seed, self.optimizer.updates)
            mine = self._all_readers()[ranks.number]
            self._fill(token_marks.of_covariance(self._read_by_updates(), mine, self.objective, ranks, seed))

    def compare(self, completions: Sequence[Completion], batch: Sequence[Completion] = ()) -> Agreement:
        """Mismatch between sampler and trainer on some completions of the current weights. Only rank 0 gets it. batch: the
        completions that the ratio is for, if they are others.
        """
        some, readings = self._probe(completions)
        if not readings:
            return Agreement({}, 0.0, 0.0)
        self.objective.begin(batch or some)
        logp, logp_mu, y = paired(some, readings)
        if batch:
            logp = self.objective.at_length_of_batch(logp, logp_mu, y)
        clipped = self.objective.numerics(logp, logp_mu, y, torch.tensor([-1.0, 1.0]))
        noise = level_ratio(self.objective.row.level, logp, logp_mu, y)
        return Agreement(disagreement(some, readings), std(noise), clipped)

    def _probe(self, completions: Sequence[Completion]) -> tuple[list[Completion], list[Reading]]:
        """Some of these completions, and the policy's readings of them."""
        some = probed(completions)
        if self.router_replay == "R3":
            return some, read_as_sampled(self.policy, some, self.micro_batches)
        return some, read(self.policy, some, self.micro_batches, routing=self.policy.sparse)

    def update(self, number: int) -> Update:
        """As LocalLearner.update. The first that reads a completion also returns the effect of numerics alone."""
        first = self._noise is None
        metrics, stats = self._update(number)
        metrics |= self.updater.skipped
        return Update(metrics, self._floor(metrics, stats) if first and stats else None)

    def _floor(self, metrics: Metrics, stats: Stats) -> Agreement:
        """What numerics alone do to the ratio, as measured before the updates or in the first one."""
        if self._fresh is not None:
            logp, logp_mu, y = self._fresh
            self._noise = level_ratio(self.objective.row.level, logp, logp_mu, y)
            clipped = self.objective.numerics(logp, logp_mu, y, stats["advantage"]) * (1 - metrics["no_signal/completions"])
        else:
            self._noise, clipped = stats["ratio"], metrics["clip_ratio/tokens"]
        disagreement = first_look(stats) if self._disagreement is None else self._disagreement
        return Agreement(disagreement, std(self._noise), clipped)

    def finish(self) -> bool:
        """Ends a step: an automatic clip range moves. Returns whether the noise floor now bounds it from below."""
        ranks, noise = self.micro_batches.ranks, self._noise
        self.take([])
        self._disagreement = self._fresh = self._noise = None
        at_floor = noise is not None and self.objective.update_range(noise)
        state = ranks.gathered(self.objective.state_dict() if ranks.number == 0 else {})[0]
        if ranks.number > 0:  # it did not receive the statistics
            self.objective.load_state_dict(state)
        return at_floor

    def _recall(self, recompute: bool, late: bool) -> None:
        """Reads the completions of all updates with the policy before its first update. Fills in pi_old's log-probabilities
        if `recompute`, and its experts, unless R3 keeps the sampler's; marks tokens by entropy. Measures the mismatch
        with the sampler, and the effect of numerics if `late`.
        """
        sampled, ranks = self.router_replay == "R3", self.micro_batches.ranks
        completions = self._read_by_updates()
        here = read_here(
            self.policy, completions, self.micro_batches, routing=self.policy.sparse, replay=sampled,
            entropy=self.objective.top_entropy < 1, readers=self._all_readers(),
        )  # fmt: skip
        filled = list(completions)
        for i, reading in here.items():
            logp_old = reading.logp if recompute else completions[i].logp_old
            routes = completions[i].routes if sampled else reading.routes
            filled[i] = replace(completions[i], logp_old=logp_old, routes=routes)
        share = self.objective.top_entropy
        self._fill(token_marks.of_entropy(filled, here, share, ranks) if share < 1 and filled else filled)
        others = ranks.gathered(other_experts([completions[i] for i in here], list(here.values())))
        readings = collected({i: Reading(reading.logp) for i, reading in here.items()}, completions, ranks)
        self._disagreement = disagreement(completions, readings, others) if readings else {}
        if readings and late:
            logp, logp_mu, y = paired(completions, readings)
            self._fresh = logp, logp if recompute else logp_mu, y

    def _estimate(self, critic: Mapping[str, float]) -> None:
        """Fills in per-token advantages and returns, from the critic as it is before the first update (PPO)."""
        completions = self._read_by_updates()  # with a critic, none is idle
        values = [reading.values for reading in read(self.policy, completions, self.micro_batches)]
        assert all(value is not None for value in values), "assembly/learners.py gives the policy a critic"
        y = Completions.of(torch.tensor([len(completion.logp_old) for completion in completions]))
        flat = torch.cat(values)  # type: ignore[arg-type]
        rewards = torch.tensor([completion.reward for completion in completions])
        A, returns = gae(rewards, flat, y, critic["gamma"], critic["lam"])
        A = whiten(A) if self.scale == "batch" else A
        parts = zip(*(x.split(y.length.tolist()) for x in (A, flat, returns)))
        self._fill([replace(c, advantage=a, values=v, returns=r) for c, (a, v, r) in zip(completions, parts)])

    def _read_with(self, policy: Policy, column: str) -> None:
        """Fills in the log-probabilities of a frozen policy."""
        completions = self._read_by_updates()
        with policy.on_device():
            here = read_here(policy, completions, self.micro_batches, readers=self._all_readers())
        known: list[Any] = [{column: here[i].logp} if i in here else {} for i in range(len(completions))]
        self._fill([replace(completion, **more) for completion, more in zip(completions, known)])


def probed(completions: Sequence[Completion]) -> list[Completion]:
    """A sample of these completions, for the comparison of sampler and trainer."""
    return list(completions[:: max(1, len(completions) // PROBED)])
