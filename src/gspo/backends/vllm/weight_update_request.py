"""One attempt to put new weights into an engine."""

from __future__ import annotations

import threading
from pathlib import Path

from gspo.backends.vllm.errors import EngineError


class Swap:
    """One attempt to put weights in place. version: theirs. folder: a Hugging Face folder that holds them, or an adapter;
    None: they are sent to the group of this name. One that was given up makes no further call: the next may be under way.
    """

    def __init__(self, version: int, folder: Path | None = None, group: str = "") -> None:
        self.version, self.folder, self.group = version, folder, group
        self._over = threading.Event()

    def give_up(self) -> None:
        """It is over for whoever waits for it, though a call may be under way."""
        self._over.set()

    def goes_on(self) -> None:
        """Raises EngineError where it was given up."""
        if self._over.is_set():
            raise EngineError("it took so long over new weights that they were given up")
