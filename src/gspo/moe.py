"""Mixture of experts: which experts each token chose, and Routing Replay. Imports torch only.

A router is a module of transformers whose class is named `...TopKRouter` or `...TopkRouter`: it returns logits, weights
and indices of the experts. Routes are an int16 tensor [layers, tokens, k] of expert indices, tokens in the order in
which a forward pass reads them, [B, L] flattened. -1 in place of an expert: none is known.

Replay (Routing Replay of arXiv 2507.18071; R2 and R3 of 2512.01374 and 2510.11370) fixes the choice alone. Each router
runs its own code, and only the answer of its last top-k comes from the routes: weights, normalisation, bias and scaling
are the model's own, of today's logits, with gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


def routers(model: nn.Module) -> list[nn.Module]:
    """The routers of a model, in the order of its layers; [] for a dense one."""
    return [module for module in model.modules() if type(module).__name__.lower().endswith("topkrouter")]


class Record:
    """What the routers did in the last forward pass. experts: how many each chooses from."""

    def __init__(self, layers: int, entropy: bool) -> None:
        self.experts = 0
        self._chosen: list[Tensor | None] = [None] * layers
        self._entropy: list[Tensor | None] = [None] * layers
        self._with_entropy = entropy

    def hook(self, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        """The forward hook of this layer's router."""

        def see(router: nn.Module, inputs: Any, outputs: Any) -> None:
            logits, chosen = outputs[0].detach(), outputs[2].detach()
            self.experts = logits.shape[-1]
            self._chosen[layer] = chosen.reshape(-1, chosen.shape[-1]).to(torch.int16)
            if self._with_entropy:
                logp = logits.reshape(-1, self.experts).float().log_softmax(-1)
                self._entropy[layer] = -(logp.exp() * logp).sum(-1)

        return see

    def take(self) -> Tensor | None:
        """Routes [layers, tokens, k] of the last forward pass, and forgets them. None for a dense model.

        Raises RuntimeError where a router did not run, or not on the same tokens as the others.
        """
        found, self._chosen = self._chosen, [None] * len(self._chosen)
        return _stacked(found)

    def take_entropy(self) -> Tensor | None:
        """Entropies [layers, tokens] of softmax(router logits) in nats, as `take`. Only if `record` was asked for them."""
        found, self._entropy = self._entropy, [None] * len(self._entropy)
        return _stacked(found)


def _stacked(found: list[Tensor | None]) -> Tensor | None:
    """The layers' tensors as one."""
    if not found:
        return None
    sizes = {None if one is None else tuple(one.shape) for one in found}
    if len(sizes) > 1 or None in sizes:
        raise RuntimeError(f"not all {len(found)} routers ran on the same tokens in one forward pass: {sizes}")
    return torch.stack([one for one in found if one is not None])


@contextmanager
def record(model: nn.Module, entropy: bool = False) -> Iterator[Record]:
    """Records the experts chosen in forward passes (`Record.take` after each), and with `entropy` the routers' entropies.

    A dense model gets no hooks, and `take` gives None.
    """
    found = routers(model)
    seen = Record(len(found), entropy)
    handles = [router.register_forward_hook(seen.hook(layer)) for layer, router in enumerate(found)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _is_topk(func: Any) -> bool:
    return func is torch.topk or func is torch.Tensor.topk


class _Count(TorchFunctionMode):
    """Counts top-k calls."""

    calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += _is_topk(func)
        return func(*args, **(kwargs or {}))


class _Answer(TorchFunctionMode):
    """Answers the last of a router's `calls` top-k calls with `routes` [tokens, k], int64; where they are -1, with its own.

    Before it, some families choose groups of experts and mask the scores of all others. The groups of `routes` are let
    through, and the rest of the groups is today's, so that replay of a router's own choice changes nothing.
    own [tokens, k]: what the top-k would have been.
    """

    own: Tensor

    def __init__(self, routes: Tensor, calls: int, experts: int) -> None:
        super().__init__()
        self.routes, self.left, self.experts = routes, calls, experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _is_topk(func):
            return func(*args, **kwargs)
        self.left -= 1
        scores, *args = args if args else (kwargs.pop("input"),)
        if self.left == 0:
            self.own = func(scores.detach(), *args, **kwargs)[1]
            index = torch.where(self.routes < 0, self.own, self.routes)
            return torch.return_types.topk((scores.gather(-1, index), index))
        if self.left == 1 and scores.ndim == 2 and 1 < scores.shape[1] < self.experts:
            scores = self._with_groups(scores, args[0] if args else kwargs["k"])
        return func(scores, *args, **kwargs)

    def _with_groups(self, scores: Tensor, room: int) -> Tensor:
        """Group scores [tokens, groups] in which the groups of `routes` come first."""
        wanted = torch.zeros_like(scores, dtype=torch.bool)
        group = self.routes.clamp(min=0) // (self.experts // scores.shape[1])
        wanted.scatter_(1, group, self.routes >= 0)  # a token has all its experts or none
        most = int(wanted.sum(1).max())
        if most > room:
            raise ValueError(f"routes: a token has experts of {most} groups, but this model's routers choose from {room}")
        return scores.masked_fill(wanted, math.inf)


class _Shape(NamedTuple):
    calls: int
    experts: int
    k: int


_shapes: WeakKeyDictionary[nn.Module, _Shape] = WeakKeyDictionary()


def _shape(router: nn.Module, forward: Callable[..., Any], token: Tensor, args: Any, kwargs: Any) -> _Shape:
    """Top-k calls, experts and k of a router, found once by a run on one token [1, H]."""
    if router not in _shapes:
        with torch.no_grad(), _Count() as count:
            logits, _, chosen, *_ = forward(token, *args, **kwargs)
        if not count.calls:
            raise ValueError(
                f"{type(router).__name__} chooses its experts without a top-k, so its routing cannot be replayed: set "
                'algorithm.router_replay = "none"'
            )
        _shapes[router] = _Shape(count.calls, logits.shape[-1], chosen.shape[-1])
    return _shapes[router]


class Replay:
    """Routes to replay, and the routers' forward methods that do it."""

    def __init__(self, model: nn.Module, routes: Tensor) -> None:
        self.routers = routers(model)
        if not self.routers:
            raise ValueError(f"{type(model).__name__} is dense (it has no top-k routers): there is no routing to replay")
        if routes.ndim != 3 or routes.shape[0] != len(self.routers):
            raise ValueError(
                f"routes of shape {list(routes.shape)} cannot be replayed: this model has {len(self.routers)} routers, so "
                f"[{len(self.routers)}, tokens, k] is needed. They come from another model"
            )
        self.routes = routes
        self.top = int(routes.max()) if routes.numel() else -1
        self._own: list[Tensor | None] = [None] * len(self.routers)

    def own(self) -> Tensor:
        """Routes [layers, tokens, k] that the routers would have chosen in the last forward pass."""
        found = _stacked(self._own)
        assert found is not None
        return found

    @contextmanager
    def on(self) -> Iterator[Replay]:
        """Replays within. May be entered again, as the backward pass of checkpointed layers does."""
        before = [vars(router).get("forward") for router in self.routers]
        for layer, router in enumerate(self.routers):
            router.forward = self._forward(layer, router, router.forward)
        _active.append(self)
        try:
            yield self
        finally:
            _active.pop()
            for router, forward in zip(self.routers, before):
                if forward is None:
                    del router.forward
                else:
                    router.forward = forward

    def _forward(self, layer: int, router: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def replayed(hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
            tokens = hidden.reshape(-1, hidden.shape[-1])
            shape = _shape(router, forward, tokens[:1], args, kwargs)
            self._check(shape, len(tokens))
            with _Answer(self.routes[layer].to(hidden.device, torch.int64), shape.calls, shape.experts) as answer:
                outputs = forward(hidden, *args, **kwargs)
            self._own[layer] = answer.own.to(torch.int16)
            return outputs

        return replayed

    def _check(self, shape: _Shape, tokens: int) -> None:
        if self.routes.shape[2] != shape.k:
            raise ValueError(
                f"routes of {self.routes.shape[2]} experts a token cannot be replayed in a model that takes {shape.k}: they "
                "come from another model"
            )
        if self.top >= shape.experts:
            raise ValueError(
                f"routes name expert {self.top} (from 0), but this model's routers choose from {shape.experts}: they come "
                "from another model"
            )
        if self.routes.shape[1] != tokens:
            raise ValueError(f"routes of {self.routes.shape[1]} tokens cannot be replayed on {tokens} tokens")


_active: list[Replay] = []  # innermost last; no context variable: backward passes have threads of their own


def replay(model: nn.Module, routes: Tensor) -> AbstractContextManager[Replay]:
    """Forward passes within choose the experts of `routes` [layers, tokens, k]; where it is -1, the router's own.

    A token has all its experts in `routes` or none. With gradient checkpointing, only one with `checkpoint_contexts`
    replays in a backward pass that runs after the context has ended. Raises ValueError for a dense model, and for routes
    of another depth, k, count of experts or tokens (the last three in the forward pass).
    """
    return Replay(model, routes).on()


def checkpoint_contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """`context_fn` of torch.utils.checkpoint: what is replayed in the forward pass is replayed in recomputation."""
    return nullcontext(), _active[-1].on() if _active else nullcontext()


def changed(a: Tensor, b: Tensor) -> Tensor:
    """Share of the k choices of `a` [..., k] that `b` has not, [...] float32, for routes of the same tokens.

    Their order does not count. Raises ValueError for routes of different shapes.
    """
    if a.shape != b.shape:
        raise ValueError(f"routes of shapes {list(a.shape)} and {list(b.shape)} cannot be compared")
    return 1 - (a[..., :, None] == b[..., None, :]).any(-1).float().mean(-1)


def max_violation(routes: Tensor, experts: int) -> float:
    """How uneven the load is: max_e load_e / mean load - 1, mean over the layers of `routes` (MaxVio, arXiv 2408.15664).

    0 where all experts get the same number of tokens, experts / k - 1 where all tokens choose the same.
    """
    loads = [torch.bincount(layer[layer >= 0].long(), minlength=experts).float() for layer in routes]
    return sum(float(load.max() / load.mean()) - 1 for load in loads) / len(loads)
