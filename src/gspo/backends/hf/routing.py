"""Mixture of experts: records which experts each token chose, and replays them (Routing Replay). Imports torch only.

Routers are defined in routers.py. Routes are an int16 tensor [layers, tokens, k] of expert indices, with tokens in the order
of the forward pass, [B, L] flattened. -1 means that the expert is not known.

Replay (Routing Replay of arXiv 2507.18071; R2 and R3 of 2512.01374 and 2510.11370) fixes only the choice of experts. Each
router runs its own code, and only the result of its last top-k call is replaced by the routes: weights, normalisation, bias
and scaling are computed by the model from its current logits, with gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gspo.backends.hf.routers import answer, no_routers, routers


class Record:
    """The routers' choices in the last forward pass. experts: the number of experts that each router chooses from."""

    def __init__(self, layers: int, entropy: bool, logits: bool) -> None:
        self.experts = 0
        self._with_entropy, self._with_logits = entropy, logits
        self._layers: dict[str, list[Tensor | None]] = {what: [None] * layers for what in ("routes", "entropy", "logits")}

    def note(self, layer: int, router: nn.Module, inputs: Any, outputs: Any) -> None:
        """The forward hook of this layer's router."""
        # A layer that is computed again for its backward pass has no hook, so nothing here may count as saved in it.
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            self._note(layer, *answer(router, outputs))

    def _note(self, layer: int, raw: Tensor, chosen: Tensor) -> None:
        self.experts = raw.shape[-1]
        if self._with_logits:
            self._layers["logits"][layer] = raw.reshape(-1, self.experts)
        self._layers["routes"][layer] = chosen.detach().reshape(-1, chosen.shape[-1]).to(torch.int16)
        if self._with_entropy:
            logp = raw.detach().reshape(-1, self.experts).float().log_softmax(-1)
            self._layers["entropy"][layer] = -(logp.exp() * logp).sum(-1)

    def take(self, what: str = "routes") -> Tensor:
        """Returns and clears what the last forward pass left: "routes" [layers, tokens, k]; "entropy" [layers, tokens] of
        softmax(router logits) in nats; "logits" [layers, tokens, experts], with gradient. The last two must have been
        requested from `record`. Raises RuntimeError if a router did not run, or ran on other tokens than the rest.
        """
        layers, self._layers[what] = self._layers[what], [None] * len(self._layers[what])
        return _stacked(layers)


def _stacked(layers: list[Tensor | None]) -> Tensor:
    """Stacks the tensors of all layers."""
    sizes = {None if layer is None else tuple(layer.shape) for layer in layers}
    if len(sizes) > 1 or None in sizes:
        raise RuntimeError(f"not all {len(layers)} routers ran on the same tokens in one forward pass: {sizes}")
    return torch.stack([layer for layer in layers if layer is not None])


@contextmanager
def record(model: nn.Module, entropy: bool = False, logits: bool = False) -> Iterator[Record]:
    """Records the experts chosen in forward passes of a mixture of experts, and if requested the routers' entropies and
    logits: call `Record.take` after each pass.
    """
    modules = routers(model)
    recording = Record(len(modules), entropy, logits)
    handles = [router.register_forward_hook(partial(recording.note, layer)) for layer, router in enumerate(modules)]
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


TOP_K = torch.topk, torch.Tensor.topk


class _Count(TorchFunctionMode):
    """Counts top-k calls."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func in TOP_K
        return func(*args, **(kwargs or {}))


class _ForcedChoice(TorchFunctionMode):
    """Replaces the result of the last of a router's `calls` top-k calls with `routes` [tokens, k], int64.

    Some model families first choose groups of experts with another top-k, and mask the scores of all other groups. The
    groups of `routes` are always let through, and the router fills the remaining groups, so that replaying a router's own
    choice changes nothing.
    """

    def __init__(self, routes: Tensor, calls: int, experts: int) -> None:
        super().__init__()
        self.routes, self.left, self.experts = routes, calls, experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in TOP_K:
            return func(*args, **kwargs)
        self.left -= 1
        scores, *args = args if args else (kwargs.pop("input"),)
        if self.left == 0:
            return torch.return_types.topk((scores.gather(-1, self.routes), self.routes))
        if self.left == 1 and scores.ndim == 2 and 1 < scores.shape[1] < self.experts:
            scores = self._with_groups(scores, args[0] if args else kwargs["k"])
        return func(scores, *args, **kwargs)

    def _with_groups(self, scores: Tensor, limit: int) -> Tensor:
        """Group scores [tokens, groups] in which the groups of `routes` rank first."""
        group = self.routes // (self.experts // scores.shape[1])
        in_routes = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, group, True)
        most = int(in_routes.sum(1).max())
        if most > limit:
            raise ValueError(f"routes: a token has experts of {most} groups, but this model's routers choose from {limit}")
        return scores.masked_fill(in_routes, math.inf)


def replayable(model: nn.Module) -> list[nn.Module]:
    """The routers whose choices are replayed. Raises ValueError if there are none, or their choices cannot be replaced."""
    modules = routers(model)
    if not modules:
        raise ValueError(f'{no_routers(model)}, so there is no routing to replay: set algorithm.router_replay = "none"')
    return modules


def _uncached(device: str) -> torch.autocast:
    """The current autocast without its cache: older torch would cache the weights cast here, which have no gradient."""
    return torch.autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device), cache_enabled=False)


class Replay:
    """Context whose forward passes use the experts of `routes` [layers, tokens, k], or the router's own where that is -1.

    For each token, `routes` holds all of its experts or none. The innermost of nested contexts wins. Reentrant: the backward
    pass of checkpointed layers enters it again. If it runs after the context has ended, it replays only with
    `checkpoint_contexts`. Raises ValueError for a dense model and for routes with another number of layers, k, experts or
    tokens (the last three in the forward pass).
    """

    def __init__(self, model: nn.Module, routes: Tensor) -> None:
        self.routers = replayable(model)
        if routes.ndim != 3 or routes.shape[0] != len(self.routers):
            raise ValueError(
                f"routes of shape {list(routes.shape)} are of another model: this model has {len(self.routers)} routers, so "
                f"[{len(self.routers)}, tokens, k] is needed"
            )
        self.top = int(routes.max()) if routes.numel() else -1
        self.routes = routes.to(next(self.routers[0].parameters()).device, non_blocking=True)  # one copy for all layers
        self._own: list[Tensor | None] = [None] * len(self.routers)
        self._before: list[list[Any]] = []  # the routers' own `forward` attributes, each time that the context was entered

    def own(self) -> Tensor:
        """The routes [layers, tokens, k] that the routers would have chosen themselves in the last forward pass."""
        return _stacked(self._own)

    def __enter__(self) -> Replay:
        self._before.append([vars(router).get("forward") for router in self.routers])
        for layer, router in enumerate(self.routers):
            plain = getattr(router.forward, "plain", router.forward)  # skips the method of an outer replay
            router.forward = self._forward(layer, router, plain)
        _active.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _active.pop()
        for router, forward in zip(self.routers, self._before.pop()):
            if forward is None:
                del router.forward
            else:
                router.forward = forward

    def _forward(self, layer: int, router: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def replayed(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
            with torch.no_grad(), _uncached(hidden.device.type), _Count() as count:
                outputs = forward(hidden, *args, **kwargs)
            if not count.calls:
                raise ValueError(
                    f"{type(router).__name__} chooses its experts without a top-k, so its routing cannot be replayed: set "
                    'algorithm.router_replay = "none"'
                )
            logits, own = answer(router, outputs)
            experts = logits.shape[-1]
            self._check(experts, *own.shape)
            self._own[layer] = own.to(torch.int16)
            routes = self.routes[layer].to(own.device, own.dtype)
            with _ForcedChoice(torch.where(routes < 0, own, routes), count.calls, experts):
                return forward(hidden, *args, **kwargs)

        replayed.plain = forward  # type: ignore[attr-defined]
        return replayed

    def _check(self, experts: int, tokens: int, k: int) -> None:
        if self.routes.shape[2] != k:
            raise ValueError(f"routes of {self.routes.shape[2]} experts a token are of another model: this one takes {k}")
        if self.top >= experts:
            raise ValueError(f"routes name expert {self.top} (from 0) of another model: this one's choose from {experts}")
        if self.routes.shape[1] != tokens:
            raise ValueError(f"routes of {self.routes.shape[1]} tokens cannot be replayed on {tokens} tokens")


_active: list[Replay] = []  # innermost last; not a context variable, since backward passes run in other threads


def check(model: nn.Module, run_model: Callable[[], Any]) -> None:
    """Raises ValueError if this model's routing cannot be replayed. `run_model` must run the model on a few tokens."""
    replayable(model)
    with torch.no_grad(), record(model) as recording:
        run_model()
        with Replay(model, recording.take()):
            run_model()


def choices(model: nn.Module, run_model: Callable[[], Any]) -> tuple[int, int]:
    """Experts per token and total number of experts of a mixture. `run_model` must run the model on a few tokens."""
    with torch.no_grad(), record(model) as recording:
        run_model()
        return recording.take().shape[2], recording.experts


def checkpoint_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """`context_fn` for torch.utils.checkpoint: each recomputation replays the same routes as the forward pass."""
    return nullcontext(), _active[-1] if _active else nullcontext()
