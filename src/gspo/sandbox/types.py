"""The data that enters and leaves a sandbox: plain data only. Expected outputs never enter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Choice = Literal["auto", "bwrap", "landlock", "none"]
Language = Literal["python", "cpp"]
Status = Literal["ok", "error", "timeout", "memory", "output", "compile"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True)
class Limits:
    """Resource limits of one test."""

    seconds: float = 10.0
    """CPU seconds of all its threads. A test that stays idle as long is ended too; one that waits for a busy CPU is not."""
    memory: int = 1 << 30
    """Bytes of memory, beyond what Python itself uses."""
    output: int = 16 << 20
    """Bytes of standard output, and of each file."""
    scratch: int = 64 << 20
    """Bytes of all files in its folder. Under Landlock, where they lie on the disk, they are counted ten times a second."""
    threads: int = 64
    """Threads. A test cannot start processes."""
    compile_seconds: float = 30.0
    """CPU seconds of the C++ compiler."""


@dataclass(frozen=True)
class Program:
    """The program to run. function: A Python function that each test calls, or else a method of a class `Solution`; None to
    run the program as a whole.
    """

    source: str
    language: Language = "python"
    function: str | None = None


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
        arguments: Those of the function, as plain data (workers/json_codec.py).
        words: Command-line arguments.
        files: Texts of the files in the working directory, by name.
    """

    stdin: str | None = None
    arguments: list[Any] | None = None
    words: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The result of a test.

    Attributes:
        status: "ok" if the program exited with status 0, or the function returned plain data.
        value: What the function returned: only None, bool, int, float, str, list, tuple, set, dict.
        seconds: CPU seconds.
        detail: The end of standard error, or why there is no value.
    """

    status: Status
    stdout: str = ""
    value: Any = None
    seconds: float = 0.0
    detail: str = ""
