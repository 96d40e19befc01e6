"""What enters a sandbox and what leaves it: plain data alone. Expected outputs never enter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Choice = Literal["auto", "bwrap", "landlock", "none"]
Language = Literal["python", "cpp"]
Status = Literal["ok", "error", "timeout", "memory", "output", "compile"]
STATUSES: tuple[str, ...] = get_args(Status)


@dataclass(frozen=True)
class Limits:
    """What one test may use."""

    seconds: float = 10.0
    """CPU seconds of all its threads. A test that sleeps is ended too, after as long without work; one that waits for a
    busy machine is not."""
    memory: int = 1 << 30
    """Bytes of memory, beyond what Python itself takes."""
    output: int = 16 << 20
    """Bytes of standard output, and of every file."""
    scratch: int = 64 << 20
    """Bytes of all files in its folder. Under Landlock there is no such folder."""
    threads: int = 64
    """Threads. There are no further processes."""
    compile_seconds: float = 30.0
    """CPU seconds of the C++ compiler."""


@dataclass(frozen=True)
class Program:
    """What is run. function: the name that is called in place of the whole program (Python); a method of a class
    `Solution` where there is no function of that name.
    """

    source: str
    language: Language = "python"
    function: str | None = None


@dataclass(frozen=True)
class Case:
    """One test: the text on standard input, or the arguments of the function, as plain data (workers/json_codec.py).

    words: what follows the program's name on its command line. files: what lies in its current folder, by name.
    """

    stdin: str | None = None
    arguments: list[Any] | None = None
    words: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a test. ok: the program ended with status 0, or the function returned plain data.

    value: what the function returned, of plain types alone: None, bool, int, float, str, list, tuple, set, dict. seconds:
    of CPU. detail: the end of standard error, or why there is no value.
    """

    status: Status
    stdout: str = ""
    value: Any = None
    seconds: float = 0.0
    detail: str = ""
