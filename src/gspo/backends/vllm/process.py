"""The process of a vLLM server of ours, on any machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gspo.distributed.environment import without_ranks
from gspo.workers.processes import close_in_children

# GiB of KV cache on a CPU: vLLM's default takes nearly all memory, but the trainer needs some too.
CPU_CACHE = {"VLLM_CPU_KVCACHE_SPACE": "4"}
GRACE = 20.0  # seconds between SIGTERM and SIGKILL
HERE = "127.0.0.1"


class EngineProcess(Protocol):
    """A server's process. It never outlives the process that started it."""

    def poll(self) -> int | None:
        """Its exit status, None while it runs. Raises EngineError if that is unknown."""
        ...

    def end(self) -> None:
        """Ends the process and all its descendants, and returns when they have ended."""
        ...


class EngineHost(Protocol):
    """A machine for a server of ours, which listens at this address. Its methods raise EngineError or OSError."""

    address: str

    def free_port(self) -> int:
        """A free port of that machine."""
        ...

    def begin(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> EngineProcess:
        """Starts the server: appends its output to `log`, adds `variables` to the machine's."""
        ...


class LocalEngine(subprocess.Popen[bytes]):
    """A server's process, in the environment of `machine` (None: this one) with these variables. It ends when its standard
    input closes.
    """

    def __init__(
        self, command: Sequence[str], log: Path, variables: Mapping[str, str], machine: Mapping[str, str] | None = None
    ) -> None:
        with open(log, "ab") as output:
            super().__init__(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=environment(os.environ if machine is None else machine, variables),
            )  # fmt: skip
        assert self.stdin is not None
        close_in_children(self.stdin)

    def end(self, grace: float = GRACE) -> None:
        """Ends the process and all its descendants. grace: seconds between SIGTERM and SIGKILL."""
        if self.poll() is None:
            self.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its workers
        self.wait()
        assert self.stdin is not None
        self.stdin.close()


class LocalHost:
    """This machine, at an address that others cannot reach."""

    address = HERE
    begin = LocalEngine

    def free_port(self) -> int:
        """See EngineHost."""
        return free_port()


def environment(of: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """A server's environment: its machine's without the variables of a rank, plus `variables`."""
    return CPU_CACHE | without_ranks(of) | {"GSPO_OWNED": "1", "VLLM_NO_USAGE_STATS": "1"} | dict(variables)


def free_port(address: str = HERE) -> int:
    """A free port of this machine. Raises OSError if the address belongs to another machine."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])
