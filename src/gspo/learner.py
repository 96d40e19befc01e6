"""One update: count, forward, backward, step.

The denominator is one number for the whole update, known before the first forward pass, so that micro-batches, their
order and the number of processes change no gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from gspo import layout
from gspo.optimiser import Optimiser
from gspo.ports import Policy
from gspo.types import Batch, Outputs, Reply, Stats


class Seen(NamedTuple):
    """What a policy says of one reply.

    logp [|y|]: the log-probabilities of its sampled tokens. routes [L, layers, k] int16: the experts that its routers
    choose for each token; None for a dense model, or where nobody asked. values [|y|]: its critic's; None without one.
    """

    logp: Tensor
    routes: Tensor | None = None
    values: Tensor | None = None


class Objective(Protocol):
    """What an update minimises."""

    def denominator(self, replies: Sequence[Reply]) -> float:
        """What the sum of all terms of this update is divided by."""
        ...

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """The terms to be summed, [S] or [N], and detached statistics, each [S] or [N]."""
        ...

    def summary(self, stats: Stats) -> dict[str, Any]:
        """Metrics of one update from the statistics of all its micro-batches."""
        ...


class Imitation:
    """Supervised fine-tuning: minus the mean log-probability of the completions' tokens."""

    def denominator(self, replies: Sequence[Reply]) -> float:
        """Completion tokens."""
        return float(sum(int(reply.sampled.sum()) for reply in replies))

    def terms(self, out: Outputs, batch: Batch) -> tuple[Tensor, Stats]:
        """-log pi of each token [N]."""
        assert out.entropy is not None
        return -out.logp, {"entropy": out.entropy, "nll": -out.logp.detach()}

    def summary(self, stats: Stats) -> dict[str, float]:
        """loss: nats a token."""
        return {"loss": float(stats["nll"].mean()), "entropy": float(stats["entropy"].mean())}


class Learner:
    """A policy and its optimiser. `max_tokens`: most tokens, padding included, in one forward pass. `replay`: updates use
    the experts of their replies' routes (Routing Replay).
    """

    def __init__(self, policy: Policy, optimiser: Optimiser, max_tokens: int, replay: bool = False):
        self.policy = policy
        self.optimiser = optimiser
        self.max_tokens = max_tokens
        self.replay = replay

    def update(self, objective: Objective, replies: Sequence[Reply]) -> tuple[dict[str, Any], Stats]:
        """One optimiser step on these replies. Returns its metrics and the statistics behind them."""
        denominator = objective.denominator(replies)
        gathered: dict[str, list[Tensor]] = defaultdict(list)
        total = torch.zeros((), dtype=torch.float64)
        for part in layout.micro_batches(replies, self.max_tokens, self.policy.shares_prompts):
            batch = layout.build(part, self.policy.shares_prompts)
            out = self.policy.forward(batch, entropy=True, routing=True, replay=self.replay)
            terms, stats = objective.terms(out, batch.to(self.policy.device))
            loss = terms.sum() / denominator
            loss.backward()
            total += loss.detach().cpu().double()
            for name, value in stats.items():
                gathered[name].append(value)
        done = self.optimiser.step(float(total))
        merged = {name: torch.cat(values).cpu() for name, values in gathered.items()}
        return {"loss": float(total)} | objective.summary(merged) | done, merged

    @torch.no_grad()
    def read(self, policy: Policy, replies: Sequence[Reply], *, routing: bool = False, replay: bool = False) -> list[Seen]:
        """What `policy` says of each reply (pi_old recomputed, or a reference), without gradient."""
        found: dict[int, Seen] = {}
        for part in layout.micro_batches(replies, self.max_tokens, policy.shares_prompts):
            batch = layout.build(part, policy.shares_prompts)
            out = policy.forward(batch, routing=routing, replay=replay)
            lengths, nothing = batch.length.tolist(), [None] * len(part)
            logps = out.logp.cpu().split(lengths)
            values = nothing if out.values is None else out.values.cpu().split(lengths)
            routes = nothing
            if out.routing is not None:
                routes = out.routing.own.cpu()[batch.path].split([len(reply.tokens) for reply in part])
            found |= {id(reply): Seen(*seen) for reply, *seen in zip(part, logps, routes, values)}
        return [found[id(reply)] for reply in replies]
