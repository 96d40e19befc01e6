"""The number of training processes, and how the model is sharded across them."""

from __future__ import annotations

from dataclasses import dataclass

from gspo.config.field import opt

LAUNCHERS = ("auto", "ray")


@dataclass(frozen=True)
class ScaleConfig:
    """Training on several GPUs, one process (rank) per GPU. All other settings mean the same with any number of ranks."""

    ranks: int | None = opt(None, low=1, high=100_000)
    """Number of training processes. Unset: as many as `torchrun` started, otherwise 1."""
    expert_parallel: int = opt(1, low=1, high=100_000)
    """Number of ranks that the experts of a mixture are divided among. 1: experts are sharded like all other weights."""
    data_parallel_replicas: int = opt(1, low=1, high=100_000)
    """Copies of the model, each sharded over ranks / replicas ranks. More copies: more memory, less
    network traffic between machines."""
    launcher: str = opt("auto", choices=LAUNCHERS)
    """What starts the ranks. `auto`: `torchrun` if it started this process, otherwise gspo, on this machine. `ray`: a Ray
    cluster, with one GPU per rank, or one CPU if the cluster has no GPU; it also places the vLLM servers of
    `sampler.engines`."""
    restarts: int = opt(3, low=0, high=10_000)
    """Maximum number of automatic restarts from the last checkpoint after a rank was killed or ran out of memory."""
    timeout: float = opt(600.0, low=1.0, high=86_400)
    """Seconds that ranks wait for each other in a pass, or for a heartbeat of rank 0, before the run counts as hung; also
    the wait for resources on a Ray cluster."""
