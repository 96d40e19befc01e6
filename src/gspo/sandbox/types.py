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

    # CPU seconds of all its threads. A test that stays idle as long is ended too; one that waits for a busy CPU is not.
    seconds: float = 10.0
    memory: int = 1 << 30  # bytes, beyond what Python itself uses
    output: int = 16 << 20  # bytes of standard output, and of each file
    scratch: int = 64 << 20  # bytes of all files in its folder; under Landlock they are counted ten times a second
    threads: int = 64  # a test cannot start processes
    compile_seconds: float = 30.0  # CPU seconds of the C++ compiler


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
    """One test."""

    stdin: str | None = None
    arguments: list[Any] | None = None  # those of the function, as plain data (workers/json_codec.py)
    words: tuple[str, ...] = ()  # command-line arguments
    files: dict[str, str] = field(default_factory=dict)  # texts of the files in the working directory, by name


@dataclass(frozen=True)
class Outcome:
    """The result of a test."""

    status: Status  # "ok" if the program exited with status 0, or the function returned plain data
    stdout: str = ""
    value: Any = None  # what the function returned: only None, bool, int, float, str, list, tuple, set, dict
    seconds: float = 0.0  # of CPU
    detail: str = ""  # the end of standard error, or why there is no value
