"""The interface of vLLM's engines, wherever they run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gspo.backends.vllm.weight_update_request import Swap


class Engine(Protocol):
    """vLLM, wherever it runs. ours: started and stopped here, and started again where it fails. log: the file of its
    output, if it has one. adapters: whether it takes LoRA adapters in place of whole weights.
    """

    log: Path | None
    adapters: bool

    @property
    def name(self) -> str:
        """What a user knows it by."""
        ...

    @property
    def ours(self) -> bool:
        """Whether it may be started again."""
        ...

    def start(self) -> None:
        """Starts it where it is ours, and waits until it answers. Raises EngineError."""
        ...

    def answers(self) -> bool:
        """Whether it is up."""
        ...

    def workers(self, method: str, *arguments: str) -> list[Any]:
        """What each of its workers answers to a method of plugin/gspo_vllm.py. Raises EngineError."""
        ...

    def sleep(self, level: int) -> None:
        """Gives memory back until the next swap, as sampler.sleep_level has it. Raises EngineError."""
        ...

    def wake(self) -> None:
        """Samples again after a swap, where it slept until then. Raises EngineError."""
        ...

    def swap(self, swap: Swap) -> int:
        """Puts weights, or an adapter, in place; where it sleeps it takes back the memory for these alone. What is being
        sampled ends early ("abort"), what comes meanwhile waits; from then on tokens carry their version. Returns how many
        workers took them. Raises EngineError.
        """
        ...

    async def ask(self, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """A completion, or a part of one. Raises EngineError, Refused for a request that it refuses."""
        ...

    async def hang_up(self) -> None:
        """No more is asked."""
        ...

    def stop(self) -> None:
        """Ends it, where it is ours, for good."""
        ...
