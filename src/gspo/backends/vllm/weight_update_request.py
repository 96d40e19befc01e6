"""One attempt to load new weights into an engine."""

from __future__ import annotations

import threading
from pathlib import Path

from gspo.backends.vllm.errors import EngineError


class Swap:
    """One attempt to load weights into an engine. Once given up it makes no further call, since the next attempt may be
    running.

    Args:
        folder: A Hugging Face folder with the weights or an adapter; None if they are sent to a process group.
        group: The name of that process group.
    """

    def __init__(self, version: int, folder: Path | None = None, group: str = "") -> None:
        self.version, self.folder, self.group = version, folder, group
        self._over = threading.Event()

    def give_up(self) -> None:
        """Cancels the attempt for its caller; an HTTP call may still be running."""
        self._over.set()

    def goes_on(self) -> None:
        """Raises EngineError if the attempt was given up."""
        if self._over.is_set():
            raise EngineError("it took so long over new weights that they were given up")
