"""The log in the terminal: messages of a command, one line each, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from gspo.safe import visible, without_logins

PACKAGE = "gspo"


def level_of(words: Sequence[str]) -> int:
    """The level that a command line asks for. It reads the bare words, so that errors in them are logged too."""
    return logging.WARNING if "--quiet" in words else logging.DEBUG if "--verbose" in words else logging.INFO


class TerminalHandler(logging.Handler):
    """Writes `gspo: warning: TEXT`, and the other libraries' records with the name of their logger."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        ours = record.name.split(".")[0] in (PACKAGE, "__main__")
        text = record.getMessage().rstrip() if ours else f"{record.name}: {record.getMessage().rstrip()}"
        with suppress(OSError, ValueError):  # nobody reads it any more
            print(f"{PACKAGE}: {level}{visible(without_logins(text))}", file=sys.stderr, flush=True)


@contextmanager
def terminal_log(level: int) -> Iterator[None]:
    """Shows gspo's log records from `level` on, and warnings of other libraries, in the terminal."""
    root, package, handler = logging.getLogger(), logging.getLogger(PACKAGE), TerminalHandler()
    before = package.level
    package.setLevel(level)
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        package.setLevel(before)
