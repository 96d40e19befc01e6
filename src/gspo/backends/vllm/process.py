"""The process of a vLLM server of ours, wherever it runs."""

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

ROOM = {
    "VLLM_CPU_KVCACHE_SPACE": "4"
}  # GiB, on a CPU: vLLM's own default is nearly all memory, and the trainer is there too
GRACE = 20.0  # seconds between asking a server to end and killing it
HERE = "127.0.0.1"


class EngineProcess(Protocol):
    """A server's process. It never outlives the process that has started it."""

    def poll(self) -> int | None:
        """Its exit status, None while it runs. Raises EngineError where nobody can tell."""
        ...

    def end(self) -> None:
        """Returns when it has ended, with all that it started."""
        ...


class EngineHost(Protocol):
    """A place for a server of ours. address, port: where the server is to listen."""

    address: str
    port: int

    def begin(self, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> EngineProcess:
        """Starts the server. log: the file that its output is added to. variables: of its environment, beside those of the
        machine. Raises EngineError.
        """
        ...

    def another_port(self) -> int:
        """A port that nothing listens at there. Raises EngineError."""
        ...


class LocalEngine(subprocess.Popen[bytes]):
    """A server's process on this machine. It ends when its standard input closes, as it does when this process is gone.
    variables: of its environment, beside those of the machine, or of this process where none are given.
    """

    def __init__(
        self, command: Sequence[str], log: Path, variables: Mapping[str, str], machine: Mapping[str, str] | None = None
    ) -> None:
        with open(log, "ab") as output:
            super().__init__(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=environment(os.environ if machine is None else machine, variables),
            )  # fmt: skip

    def end(self, grace: float = GRACE) -> None:
        """Returns when it has ended, with all that it started. grace: seconds in which it may do so by itself."""
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
    """A place on this machine, out of reach of others."""

    begin = LocalEngine

    def __init__(self, port: int) -> None:
        self.address, self.port = HERE, port

    def another_port(self) -> int:
        """See EngineHost."""
        return free_ports(1)[0]


def environment(of: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """A server's environment: that of its machine without what makes a process a rank, and `variables`."""
    return ROOM | without_ranks(of) | {"GSPO_OWNED": "1", "VLLM_NO_USAGE_STATS": "1"} | dict(variables)


def free_ports(count: int, address: str = HERE) -> list[int]:
    """Ports of this machine that nothing listens at, no two alike. Raises OSError where the address is another machine's."""
    with contextlib.ExitStack() as stack:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listeners = [stack.enter_context(socket.socket(family)) for _ in range(count)]
        for listener in listeners:
            listener.bind((address, 0))
        return [int(listener.getsockname()[1]) for listener in listeners]
