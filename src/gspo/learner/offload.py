"""Offloading to host memory: AdamW's moments between steps, a frozen model between its uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

BUCKET = 1 << 26  # elements whose moments are on the device at the same time: 512 MiB


class Offloaded:
    """Steps an AdamW bucket by bucket, as a plain step does: AdamW treats each weight independently."""

    def __init__(self, adamw: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        self.adamw, self.parameters = adamw, parameters
        self.host: dict[nn.Parameter, dict[str, Tensor]] = {}

    def buckets(self) -> Iterator[list[nn.Parameter]]:
        """The parameters with a gradient, in buckets of about BUCKET elements."""
        part: list[nn.Parameter] = []
        for parameter in self.parameters:
            if parameter.grad is None:
                continue
            if part and sum(p.numel() for p in part) + parameter.numel() > BUCKET:
                yield part
                part = []
            part.append(parameter)
        if part:
            yield part

    def step(self) -> None:
        """One step; clears the gradients."""
        parts = list(self.buckets())
        waiting = {p: p.grad for part in parts for p in part}
        for parameter in waiting:
            parameter.grad = None  # AdamW skips parameters without one
        for part in parts:
            for parameter in part:
                parameter.grad = waiting.pop(parameter)
                if parameter in self.host:
                    self.adamw.state[parameter] = {
                        name: torch.empty_like(value, device=parameter.device).copy_(value, non_blocking=True)
                        for name, value in self.host[parameter].items()
                    }
            self.adamw.step()
            for parameter in part:
                parameter.grad = None
                self._keep(parameter, self.adamw.state.pop(parameter))
        self._settle()

    def _settle(self) -> None:
        """Waits for all copies to the host at once, rather than for each one."""
        if any(parameter.device.type == "cuda" for parameter in self.parameters):
            torch.cuda.synchronize()

    def _keep(self, parameter: nn.Parameter, state: dict[str, Tensor]) -> None:
        host = self.host.setdefault(parameter, {})
        for name, value in state.items():
            if name not in host:
                host[name] = room(value, parameter.device)
            host[name].copy_(value, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        """In the format of AdamW's own."""
        state = {i: dict(self.host[p]) for i, p in enumerate(self.parameters) if p in self.host}
        return self.adamw.state_dict() | {"state": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an AdamW, offloaded or not."""
        self.adamw.load_state_dict(state | {"state": {}})
        for i, parameter in enumerate(self.parameters):
            if i in state["state"]:
                self._keep(parameter, state["state"][i])
            else:
                self.host.pop(parameter, None)
        self._settle()


class Resting:
    """A frozen model that is on its device only while awake. The host copy never changes, so nothing is copied back."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
        self.device = self.tensors[0].device
        self.host = [room(x, self.device).copy_(x.detach()) for x in self.tensors]
        self.rest()

    def rest(self) -> None:
        """Releases the device's memory."""
        for x, host in zip(self.tensors, self.host):
            x.data = host

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Context in which the model is on its device."""
        try:
            for x, host in zip(self.tensors, self.host):
                x.data = arrived(host, self.device)
            yield
        finally:
            self.rest()


def room(like: Tensor, device: torch.device) -> Tensor:
    """A host buffer for such a tensor, pinned for a GPU so that copies overlap with computation."""
    return torch.empty_like(like, device="cpu", requires_grad=False, pin_memory=device.type == "cuda")


def arrived(host: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device; a copy, unless the device is the host."""
    return host.to(device, non_blocking=True)
