"""How many processes learn, and how the model lies among them."""

from __future__ import annotations

from dataclasses import dataclass

from gspo.config.field import opt

LAUNCHERS = ("auto", "ray")


@dataclass(frozen=True)
class ScaleConfig:
    """Learning on several GPUs, one process (rank) each. Everything else means the same with one rank and with many."""

    ranks: int | None = opt(None, low=1, high=100_000)
    """Processes that learn together. Unset: those that `torchrun` started, else 1."""
    experts: int = opt(1, low=1, high=100_000)
    """Ranks that divide the experts of a mixture among them (expert parallelism). 1: experts are sharded as all weights
    are."""
    replicas: int = opt(1, low=1, high=100_000)
    """Copies of the model, each sharded over ranks / replicas. More copies need more memory and less of the network between
    machines."""
    launcher: str = opt("auto", choices=LAUNCHERS)
    """What starts the ranks. `auto`: `torchrun` if it started this process, else gspo on this machine. `ray`: a Ray
    cluster, with one GPU for each, or one CPU where it has no GPU; it also places the vLLM servers of `sampler.engines` and
    spreads `reward.workers`."""
    restarts: int = opt(3, low=0, high=10_000)
    """How often a run goes on by itself from its last checkpoint after a rank was killed, or was out of memory."""
    timeout: float = opt(600.0, low=1.0, high=86_400)
    """Seconds that ranks wait for one another in a pass, or for a sign of life of the first, before the run counts as hung;
    also for places on a Ray cluster."""
