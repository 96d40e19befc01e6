"""AdamW with its schedule, gradient clipping, and rejection of non-finite updates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from gspo.config.policy import ResolvedOptimizer
from gspo.distributed.ranks import whole
from gspo.learner.offload import Offloaded

# optimizer.lr = "auto" is a power law through two points (number of parameters, rate), and constant outside them. Measured:
# at the smaller size 1e-6 learns nothing in 20 steps and 1e-5 learns. 1e-6 is the usual rate at the larger size.
SMALL, LARGE = (135e6, 1e-5), (30e9, 1e-6)
ADAPTERS = 10.0  # adapters usually take ten times the rate of all weights


def lr_for(parameters: int, adapters: bool = False) -> float:
    """The learning rate for a model of this size, to two digits. adapters: only adapters are trained."""
    along = math.log(max(parameters, 1) / SMALL[0]) / math.log(LARGE[0] / SMALL[0])
    lr = SMALL[1] * (LARGE[1] / SMALL[1]) ** min(max(along, 0.0), 1.0)
    return float(f"{lr * ADAPTERS if adapters else lr:.1e}")


def lr_at(update: int, total: int, config: ResolvedOptimizer) -> float:
    """Learning rate of update number `update` (from 0) of `total`: linear warm-up, then the schedule."""
    if update < config.warmup:
        return config.lr * (update + 1) / config.warmup
    share = min(1.0, (update - config.warmup) / max(1, total - config.warmup))
    fall = {"constant": 1.0, "linear": 1 - share, "cosine": (1 + math.cos(math.pi * share)) / 2}[config.schedule]
    return config.lr * (config.min_lr + (1 - config.min_lr) * fall)


def by_mesh(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Groups the parameters by device mesh; one operation cannot mix meshes. Unsharded parameters form one group."""
    meshes: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        meshes.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(meshes.values()) or [[]]


def shard_of(x: Tensor, like: Any) -> Tensor:
    """This rank's shard of a full tensor, sharded like `like`."""
    return distribute_tensor(x.to(like.device), like.device_mesh, like.placements, src_data_rank=None)


def adamw_of(groups: list[dict[str, Any]], config: ResolvedOptimizer, fused: bool) -> torch.optim.Optimizer:
    """The AdamW of optimizer.name, whose library is installed (config/checks.py)."""
    given: dict[str, Any] = {
        "lr": config.lr, "betas": (config.beta1, config.beta2), "eps": config.eps, "weight_decay": config.weight_decay,
    }  # fmt: skip
    if config.name == "adamw":
        return torch.optim.AdamW(groups, **given, fused=fused)
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(groups, **given)


class Optimizer:
    """AdamW with a learning-rate schedule. A step whose loss or gradient is non-finite is skipped and counted; more than
    `max_bad` of them in a row raise RuntimeError.

    Parameters with fewer than two dimensions (most norms and biases) are excluded from weight decay, and so are those in
    `kept`: per-head norms and biases of experts, which have more.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        config: ResolvedOptimizer,
        total_updates: int,
        max_bad: int,
        offload: bool = False,
        kept: Iterable[nn.Parameter] = (),
    ):
        self.parameters = list(parameters)
        self.order: list[nn.Parameter]  # index order of AdamW's state for unsharded weights
        self.config = config
        self.total = total_updates
        self.max_bad = max_bad
        self.updates = 0
        self.scale = 1.0  # of the scheduled learning rate
        self.lr_override: float | None = None  # replaces optimizer.lr and `scale`
        self.bad_in_a_row = 0
        self.adamw = adamw_of(self._groups(set(kept)), config, all(p.is_floating_point() for p in self.parameters))
        self.moments: torch.optim.Optimizer | Offloaded = self.adamw  # steps it; Offloaded keeps the moments on the host
        if offload:
            self.moments = Offloaded(self.adamw, [p for group in self.adamw.param_groups for p in group["params"]])

    def _groups(self, left_out: set[nn.Parameter]) -> list[dict[str, Any]]:
        """Groups with and without weight decay (one if it is 0), each on a single mesh."""
        if not self.config.weight_decay:
            self.order = self.parameters
            return [{"params": same} for same in by_mesh(self.parameters)]
        decays = {p: p.ndim > 1 and p not in left_out for p in self.parameters}
        decayed, kept = ([p for p in self.parameters if decays[p] == which] for which in (True, False))
        self.order = decayed + kept
        groups = [{"params": same} for same in by_mesh(decayed)]
        return groups + [{"params": same, "weight_decay": 0.0} for same in by_mesh(kept)]

    def _in_shards(self, adamw: dict[str, Any]) -> dict[str, Any]:
        """Converts the state of an AdamW of full weights to that of the shards."""
        every = [p for group in self.adamw.param_groups for p in group["params"]]
        number = {p: i for i, p in enumerate(every)}
        state = {}
        for i, moments in adamw["state"].items():
            p = self.order[i]
            state[number[p]] = {name: shard_of(x, p) if x.shape == p.shape else x for name, x in moments.items()}
        return self.adamw.state_dict() | {"state": state}

    def make_moments(self) -> None:
        """Allocates AdamW's moments as zeros, ahead of its first step, so that their memory is in use now."""
        if self.moments is not self.adamw or self.adamw.state:
            return
        for p in self.parameters:
            count = torch.zeros((), dtype=torch.float32, device=p.device)
            zeros = {name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in ("exp_avg", "exp_avg_sq")}
            self.adamw.state[p] = {"step": count, **zeros}

    def _clipped(self) -> float:
        """Clips the gradient to max_grad_norm. Returns its norm before that."""
        meshes = [[p.grad for p in same if p.grad is not None] for same in by_mesh(self.parameters)]
        norms = [whole(nn.utils.get_total_norm(gradients)) for gradients in meshes]
        norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
        for same in by_mesh(self.parameters):
            nn.utils.clip_grads_with_norm_(same, self.config.max_grad_norm, norm)
        return float(norm)

    def step(self, loss: float) -> dict[str, float]:
        """Clips and applies the accumulated gradients, then clears them. `loss` is only checked for being finite."""
        scale = self.scale if self.lr_override is None else self.lr_override / self.config.lr
        lr = scale * lr_at(self.updates, self.total, self.config)
        norm = self._clipped()
        good = math.isfinite(loss) and math.isfinite(norm)
        if good:
            for group in self.adamw.param_groups:
                group["lr"] = lr
            self.moments.step()
        self.clear()
        self.updates += 1
        self.bad_in_a_row = 0 if good else self.bad_in_a_row + 1
        if self.bad_in_a_row > self.max_bad:
            raise RuntimeError(
                f"{self.bad_in_a_row} updates in a row had a non-finite loss or gradient (loss {loss}, gradient norm "
                f'{norm}): lower optimizer.lr = {self.config.lr:g}, or set model.dtype = "float32"'
            )
        return {"grad_norm": norm, "lr": lr, "updates/skipped": float(not good)}

    def set_zero_gradients(self) -> None:
        """Sets a gradient of zeros, so that a step without a backward pass changes the moments and the weights as any other.
        Skips parameters that no step has reached yet, such as an image tower's, unless no step has reached any.
        """
        known = self.moments.host if isinstance(self.moments, Offloaded) else self.adamw.state
        for p in [p for p in self.parameters if p in known] or self.parameters:
            p.grad = torch.zeros_like(p)

    def clear(self) -> None:
        """Discards the accumulated gradients."""
        self.adamw.zero_grad(set_to_none=True)

    def state_dict(self, moments: bool = True) -> dict[str, Any]:
        """All state that the next step depends on, besides the parameters. moments: include AdamW's moments."""
        state = {"updates": self.updates, "bad_in_a_row": self.bad_in_a_row}
        return {"adamw": self.moments.state_dict()} | state if moments else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.updates = state["updates"]
        self.bad_in_a_row = state["bad_in_a_row"]
        if "adamw" not in state:  # the moments are stored elsewhere, as shards
            return
        adamw, sharded = state["adamw"], any(isinstance(p, DTensor) for p in self.parameters)
        self.moments.load_state_dict(self._in_shards(adamw) if sharded else adamw)

    def take_moments(self) -> None:
        """Moves moments that were loaded into AdamW itself to where they are kept between steps."""
        if self.moments is not self.adamw:
            self.moments.load_state_dict(self.adamw.state_dict())
