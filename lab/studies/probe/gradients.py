"""The gradient of each group by many objectives at once.

Every objective's gradient is sum_t c_t grad log pi(y_t): they differ in the coefficients alone, which its equation gives. So
a group is read once, and then walked back once for each objective that has coefficients of its own. Of a gradient a sketch
is kept, which keeps products.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from gspo.learner import layout
from gspo.learner.deterministic_backward import in_one_order
from gspo.learner.interfaces import Policy
from gspo.learner.objective import PolicyObjective
from gspo.objective.completions import Completions
from gspo.types import Batch, Completion

SIZE = 1 << 16  # numbers that are kept of a gradient
BLOCK = 1 << 22  # numbers that are added up at once

Coefficients = Callable[[Tensor, Batch], Tensor]
"""What each log pi(y_t) of a batch counts in an objective's gradient: log pi [N] and the batch -> [N]."""


class Sketch:
    """Keeps `size` numbers of a gradient, so that products of two of them stay, on average, what they were: each number gets
    a random sign and is added to a random one of them (count sketch). The error of a product is about |a| |b| / sqrt(size).
    Fewer parameters are kept as they are.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], size: int = SIZE) -> None:
        self.parameters = list(parameters)
        self.count = sum(p.numel() for p in self.parameters)
        self.exact = self.count <= size
        self.size, self.width = size, self.count if self.exact else size
        self.drawn: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def of(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """[size] float32, on the CPU; of gradients in the order of the parameters, None for 0."""
        if self.exact:
            whole = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, gradients)]
            return torch.cat([g.detach().float().flatten().cpu() for g in whole])
        kept: Tensor | None = None
        for number, gradient in enumerate(gradients):
            if gradient is not None:
                kept = torch.zeros(self.size, device=gradient.device) if kept is None else kept
                self._add(kept, gradient.detach().flatten(), number)
        return torch.zeros(self.size) if kept is None else kept.cpu()

    def _add(self, kept: Tensor, x: Tensor, number: int) -> None:
        for part, (place, sign) in zip(x.split(BLOCK), self.drawn.get(number) or self._draw(x, number)):
            kept.index_add_(0, place, part.float() * sign)

    def _draw(self, x: Tensor, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Places and signs of a parameter's numbers, always the same. They are kept where one block holds a whole model."""
        drawn, few = torch.Generator(x.device).manual_seed(number), self.count <= BLOCK
        for part in x.split(BLOCK):
            place = torch.randint(0, 2 * self.size, part.shape, generator=drawn, device=x.device)  # and a sign
            found = place % self.size, 1.0 - 2.0 * (place >= self.size)
            if few:
                self.drawn[number] = [found]
            yield found


def coefficients(objective: PolicyObjective, on_policy: bool = False) -> Coefficients:
    """Those of an objective's own equation. on_policy: with pi_old and mu equal to pi, so that every ratio is 1."""

    def of(logp: Tensor, batch: Batch) -> Tensor:
        leaf = logp.detach().requires_grad_()
        y = Completions(batch.completion, batch.length, batch.turn)
        same = dict.fromkeys(("logp_old", "logp_mu"), logp.detach())
        with torch.enable_grad():
            loss = objective.surrogate(leaf, batch.advantage.to(leaf), y, vars(batch) | (same if on_policy else {})).loss
            (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        return -gradient

    return of


def of_group(
    policy: Policy,
    views: Mapping[str, Sequence[Completion]],
    wanted: Mapping[str, tuple[str, Coefficients]],
    sketch: Sketch,
    max_tokens: int,
    replay: bool = False,
) -> dict[str, Tensor]:
    """The sketch of a group's gradient by each objective that is wanted: name -> (view, its coefficients).

    views: the same completions with other advantages or likelihoods. replay: the routers take the experts of their routes.
    """
    first = next(iter(views.values()))
    total: dict[str, Tensor] = {}
    for part in layout.micro_batches(first, max_tokens, policy.shares_prompts):
        built = {name: layout.build([each[i] for i in part], policy.shares_prompts) for name, each in views.items()}
        with torch.enable_grad():
            logp = policy.forward(next(iter(built.values())), replay=replay).logp
        there = {name: batch.to(policy.device) for name, batch in built.items()}
        once = apart({name: of(logp, there[view]) for name, (view, of) in wanted.items()})
        for number, (weight, names) in enumerate(once):
            with in_one_order(policy.device):
                gradients = torch.autograd.grad(
                    logp, sketch.parameters, weight, retain_graph=number < len(once) - 1, allow_unused=True
                )
            kept = sketch.of(gradients)
            for name in names:
                total[name] = total[name] + kept if name in total else kept
    return total


def apart(weights: Mapping[str, Tensor]) -> list[tuple[Tensor, list[str]]]:
    """Each of the coefficients once, with the names of all that have the same: ranges that clip nothing here are alike."""
    found: list[tuple[Tensor, list[str]]] = []
    for name, weight in weights.items():
        names = next((names for other, names in found if torch.equal(other, weight)), None)
        if names is None:
            found.append((weight, [name]))
        else:
            names.append(name)
    return found
