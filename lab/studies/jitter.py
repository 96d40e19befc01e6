"""A sampler whose routers' logits are disturbed: what a coarse or a stale engine does to a mixture of experts, and no more.

The disturbance decides which experts are taken. What each of them counts stays as its undisturbed logits say, so that a
trainer that replays the choice (R3) says what the sampler said. Neither the trainer nor the evaluator is disturbed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gspo.backends.hf.routers import answer, routers
from gspo.backends.hf.routing import Replay
from gspo.backends.hf.sampler import HFSampler
from gspo.rollout.synchronous import SynchronousSource
from gspo.training.state import Run


def disturb(model: nn.Module, share: float, seed: int) -> None:
    """Adds to each router's logits normal noise, `share` times as wide as a token's logits, before it chooses."""
    drawn = torch.Generator().manual_seed(seed)
    for router in routers(model):
        router.forward = _disturbed(router, router.forward, share, drawn)  # type: ignore[method-assign]


def _disturbed(router: nn.Module, plain: Callable[..., Any], share: float, drawn: torch.Generator) -> Callable[..., Any]:
    def forward(hidden: Tensor) -> Any:
        logits, chosen = answer(router, plain(hidden))
        noise = torch.randn(logits.shape, generator=drawn).to(logits)
        routes = (logits + share * logits.std(-1, keepdim=True) * noise).topk(chosen.shape[-1]).indices
        with Replay(nn.ModuleList([router]), routes[None]):
            return router.forward(hidden)  # without hooks: whoever records the choice sees it once

    forward.plain = plain  # type: ignore[attr-defined]  # what a replay runs
    return forward


def jittered(run: Run, share: float) -> None:
    """Gives a run a sampler of its own, whose routing is disturbed."""
    assert isinstance(run.sampler, HFSampler) and isinstance(run.source, SynchronousSource)
    model = dataclasses.replace(run.sampler.model, model=copy.deepcopy(run.sampler.model.model))
    run.sampler = run.source.sampler = sampler = HFSampler(model, run.sampler.batch_size)  # it proves its cache undisturbed
    disturb(model.model, share, run.config.train.seed)
    sampler.load(run.learner.publish(sampler.version))
