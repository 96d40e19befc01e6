"""A sampler with two dials, to study an algorithm: weights rounded to few bits, and weights that are some versions old.

    [sampler]
    engine = "lab.studies.dials:dials"
    engine_args = {kind = "int4", lag = 4}

Training samples from a copy of the model; evaluations sample from the policy itself. Only the newest weights are in a
checkpoint, so a resumed run with a lag starts with those.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gspo.backends.hf.model import HFModel
from gspo.backends.hf.routers import routers
from gspo.backends.hf.sampler import HFSampler
from gspo.config.schema import Config
from gspo.interfaces import Weights
from gspo.types import Prompt, Rollout, Sampling

BITS = {"int8": 8, "int4": 4}
KINDS = ("none", "bf16", "fp8", *BITS)
PROBES = 32  # completions with which a lagging sampler shows what numerics alone do


def dials(config: Config, model: HFModel, kind: str = "none", lag: int = 0) -> tuple[Dialled, HFSampler]:
    """The sampler of training, with weights rounded to `kind` and `lag` versions old, and the exact one for evaluation."""
    if kind not in KINDS or lag < 0:
        given = f"sampler.engine_args = {{kind = {kind!r}, lag = {lag}}}"
        raise ValueError(f"{given}: kind is one of {', '.join(KINDS)}, and lag is at least 0")
    if config.lora.rank or model.sharded:
        raise ValueError(
            "sampler.engine: the dials are for one process that trains all weights: set lora.rank = 0 and scale.ranks = 1"
        )
    size = config.sampler.batch_size
    own = dataclasses.replace(model, model=copy.deepcopy(model.model))
    return Dialled(HFSampler(own, size), kind, lag), HFSampler(model, size)


def dialled(quantize: str) -> dict[str, Any]:
    """The section [sampler] of a run that samples from rounded weights."""
    return {} if quantize == "none" else {"engine": f"{__name__}:dials", "engine_args": {"kind": quantize}}


class Dialled:
    """A Sampler whose weights are rounded and `lag` versions old. `probes` are completions of the newest weights."""

    def __init__(self, inner: HFSampler, kind: str, lag: int) -> None:
        self.inner, self.kind, self.version, self.probes = inner, kind, 0, list[Rollout]()
        self.counts, self.rest = inner.counts, inner.rest
        self.kept: deque[tuple[int, dict[str, Tensor]]] = deque(maxlen=lag + 1)  # the newest weights last
        self.asked: tuple[Sequence[Prompt], int, Sampling] | None = None

    def load(self, weights: Weights) -> None:
        """Keeps a copy of these weights, and loads the oldest that are kept."""
        if weights.version != self.version + 1:
            self.kept.clear()  # the first weights of a run, or of one that was resumed
        self.version, self.probes = weights.version, []
        self.kept.append((weights.version, {name: value.detach().clone() for name, value in weights.tensors()}))
        if self.asked is not None and len(self.kept) > 1:
            prompts, n, sampling = self.asked
            self._show(*self.kept[-1])
            self.probes = self.inner.generate(prompts[: max(1, PROBES // n)], n, sampling)
        self._show(*self.kept[0])

    def _show(self, version: int, tensors: dict[str, Tensor]) -> None:
        self.inner.load(cast(Weights, SimpleNamespace(version=version, tensors=tensors.items)))
        if self.kind != "none":
            round_weights(self.inner.model.model, self.kind)

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], Any] | None = None
    ) -> list[Rollout]:
        """Completions under the weights that are loaded."""
        self.asked = prompts, n, sampling
        return self.inner.generate(prompts, n, sampling, progress)


def quantized(weight: Tensor, kind: str) -> Tensor:
    """`weight` [..., out, in] rounded to `kind`: "int8" or "int4" on a symmetric grid of 2^bits - 1 values, or "fp8" (e4m3),
    each with one scale per output channel; or "bf16", without a scale.
    """
    if kind == "bf16":
        return weight.to(torch.bfloat16).to(weight.dtype)
    largest = torch.finfo(torch.float8_e4m3fn).max if kind == "fp8" else 2 ** (BITS[kind] - 1) - 1
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / largest
    if kind == "fp8":
        return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale
    return (weight / scale).round().clamp(-largest, largest) * scale


def rounded_weights(model: nn.Module) -> Iterator[nn.Parameter]:
    """The weights that an engine rounds: matrices of attention and (expert) MLP layers, not embeddings, head or routers."""
    embeddings = [model.get_input_embeddings(), model.get_output_embeddings()]  # type: ignore[operator]
    exact_ids = {id(p) for module in [*embeddings, *routers(model)] for p in module.parameters()}
    return (p for p in model.parameters() if p.ndim >= 2 and id(p) not in exact_ids)


@torch.no_grad()
def round_weights(model: nn.Module, kind: str) -> None:
    """Rounds the weights of `model` in place (`quantized`)."""
    for p in rounded_weights(model):
        p.copy_(quantized(p, kind))
