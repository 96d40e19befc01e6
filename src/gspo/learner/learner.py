"""One update: count, forward, backward, step.

The denominator is one number for the whole update, known before the first forward pass, so that micro-batches, their
order and the number of processes change no gradient.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from gspo.learner import layout
from gspo.learner.optimizer import Optimizer
from gspo.ports import Objective, Policy
from gspo.types import Completion, Outputs, Seen, Stats

Made = TypeVar("Made")


class Learner:
    """A policy and its optimizer. `max_tokens`: most tokens, padding included, in one forward pass. `replay`: updates use
    the experts of their completions' routes (Routing Replay). tell: hears where memory does not suffice. skipped: what the
    last update left out, as shares of its sampled tokens: of idle completions, and of other micro-batches' backward passes.
    """

    def __init__(
        self, policy: Policy, optimizer: Optimizer, max_tokens: int, replay: bool = False,
        tell: Callable[[str], None] = lambda text: None,
    ):  # fmt: skip
        self.policy = policy
        self.optimizer = optimizer
        self.max_tokens = max_tokens
        self.replay, self.tell = replay, tell
        self.skipped: dict[str, float] = {}
        self.part: Sequence[Completion] = ()  # what is being read

    def update(self, objective: Objective, completions: Sequence[Completion]) -> tuple[dict[str, Any], Stats]:
        """One optimizer step on these completions. Returns its metrics and the statistics behind them. Where memory does not
        suffice, max_tokens is halved and all is done again; RuntimeError where that does not help either.
        """
        active = [completion for completion in completions if not objective.idle(completion)] or list(completions)
        gathered, total = self._within_memory(active, lambda: self._gradient(objective, completions, active))
        done = self.optimizer.step(total)
        merged = {name: torch.cat(values).cpu() for name, values in gathered.items()}
        return {"loss": total} | objective.summary(merged, completions) | done, merged

    def _gradient(
        self, objective: Objective, completions: Sequence[Completion], active: Sequence[Completion]
    ) -> tuple[dict[str, list[Tensor]], float]:
        """Adds up the gradient of an update. Returns its statistics, micro-batch by micro-batch, and the loss.

        What has exactly zero gradient is left out: idle completions altogether, and the backward pass of micro-batches. The
        denominator counts them, so the gradient is that of the whole. One backward pass is always run: the optimizer then
        sees zeros, as it would have, and not nothing.
        """
        denominator = objective.denominator(completions)
        gathered: dict[str, list[Tensor]] = defaultdict(list)
        total = torch.zeros((), dtype=torch.float64)
        parts = layout.micro_batches(active, self.max_tokens, self.policy.shares_prompts)
        passed = 0  # tokens whose backward pass was run
        for left, part in zip(range(len(parts) - 1, -1, -1), parts):
            loss, stats, tokens = self._pass(objective, part, denominator, always=not left and not passed)
            passed += tokens
            total += loss.cpu().double()
            for name, value in stats.items():
                gathered[name].append(value)
        every, read = (sum(len(completion.logp_old) for completion in some) for some in (completions, active))
        self.skipped = {"skipped/completions": 1 - read / every, "skipped/backward": (read - passed) / every}
        return gathered, float(total)

    def _pass(
        self, objective: Objective, part: Sequence[Completion], denominator: float, always: bool
    ) -> tuple[Tensor, Stats, int]:
        """One micro-batch's part of the loss, its statistics, and the tokens whose backward pass was run. Nothing of its
        graph outlives it.
        """
        self.part = part
        batch = layout.build(part, self.policy.shares_prompts)
        out = self.policy.forward(batch, entropy=True, routing=True, replay=self.replay)
        said = cut(out)
        terms, stats = objective.terms(said, batch.to(self.policy.device))
        loss = terms.sum() / denominator
        loss.backward()
        return loss.detach(), stats, len(batch.node) if pull(out, said, always) else 0

    def _within_memory(self, completions: Sequence[Completion], attempt: Callable[[], Made]) -> Made:
        """What `attempt` makes of these completions, with micro-batches that fit."""
        while True:
            try:
                return attempt()
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                share = self.policy.shares_prompts
                parts = layout.micro_batches(completions, self.max_tokens, share)
                most = max(layout.size(part, share) for part in parts)
                if len(self.part) == 1:  # which no smaller micro-batch would make smaller
                    raise RuntimeError(
                        f"out of memory with one completion of {layout.size(self.part, share)} tokens: set "
                        "train.gradient_checkpointing = true, on a GPU train.offload_optimizer = true, lower "
                        "rollout.max_completion_length, or train adapters (lora.rank)"
                    ) from error
            # The error is gone here, and with it the tensors that it held.
            self.optimizer.clear()
            self.max_tokens = min(most, self.max_tokens) // 2
            self.tell(f"memory did not suffice: micro-batches have at most {self.max_tokens} tokens from here on")
            gc.collect()
            if self.policy.device.type == "cuda":
                torch.cuda.empty_cache()

    @torch.no_grad()
    def read(
        self, policy: Policy, completions: Sequence[Completion], *, routing: bool = False, replay: bool = False
    ) -> list[Seen]:
        """What `policy` says of each completion (pi_old recomputed, or a reference), without gradient. Of memory as
        `update`.
        """
        return self._within_memory(completions, lambda: self._said(policy, completions, routing, replay))

    def _said(self, policy: Policy, completions: Sequence[Completion], routing: bool, replay: bool) -> list[Seen]:
        found: dict[int, Seen] = {}
        for part in layout.micro_batches(completions, self.max_tokens, policy.shares_prompts):
            self.part = part
            batch = layout.build(part, policy.shares_prompts)
            out = policy.forward(batch, routing=routing, replay=replay)
            lengths, nothing = batch.length.tolist(), [None] * len(part)
            logps = out.logp.cpu().split(lengths)
            values = nothing if out.values is None else out.values.cpu().split(lengths)
            routes = nothing
            if out.routing is not None:
                routes = out.routing.own.cpu()[batch.path].split([len(completion.tokens) for completion in part])
            found |= {id(completion): Seen(*seen) for completion, *seen in zip(part, logps, routes, values)}
        return [found[id(completion)] for completion in completions]


def out_of_memory(error: RuntimeError) -> bool:
    """Whether this is a GPU's or a CPU's way to say that memory did not suffice."""
    return any(words in str(error) for words in ("out of memory", "ALLOC_FAILED", "can't allocate memory"))


def cut(out: Outputs) -> Outputs:
    """The same, cut off from the policy: gradients stop here, where `pull` finds them."""

    def leaf(x: Tensor | None) -> Tensor | None:
        return x if x is None or not x.requires_grad else x.detach().requires_grad_()

    routing = None if out.routing is None else out.routing._replace(logits=leaf(out.routing.logits))
    logp = leaf(out.logp)
    assert logp is not None
    return Outputs(logp, leaf(out.entropy), routing, leaf(out.values))


def pull(out: Outputs, said: Outputs, always: bool) -> bool:
    """Passes the gradients that `cut` stopped on to the policy's parameters, where any is not zero (or `always`). Returns
    whether it did.
    """
    pairs = [(out.logp, said.logp), (out.entropy, said.entropy), (out.values, said.values)]
    if out.routing is not None and said.routing is not None:
        pairs.append((out.routing.logits, said.routing.logits))
    found = [(x, leaf.grad) for x, leaf in pairs if x is not None and leaf is not None and leaf.grad is not None]
    if not always and not any(bool(gradient.any()) for _, gradient in found):
        return False
    torch.autograd.backward([x for x, _ in found], [gradient for _, gradient in found])
    return True
