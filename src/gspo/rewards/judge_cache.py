"""Responses that were given before: in memory, and in an SQLite file that several processes may share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

MOST = 100_000  # responses kept in memory
PATIENCE = 30.0  # seconds to wait for another process that writes


def key_of(values: Any) -> str:
    """A key for everything that determines a response, as plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()


class Cache:
    """Texts by key. The file holds hashes and responses, never what was asked."""

    def __init__(self, path: str | None, where: str) -> None:
        """path: the file; None: memory only. Raises ValueError, naming the key `where`, for a file that cannot be used."""
        self._memory: dict[str, str] = {}
        self._file: sqlite3.Connection | None = None
        if path is None:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Only one thread uses it after this one: that of the judge's requests.
            self._file = sqlite3.connect(Path(path), PATIENCE, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise ValueError(f"{where} = {path!r}: cannot be used as a cache ({error}); name another file") from None

    def get(self, key: str) -> str | None:
        """The response, or None."""
        if key not in self._memory and self._file is not None:
            with contextlib.suppress(sqlite3.Error):  # it is only a help
                for (response,) in self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)):
                    self._remember(key, response)
        return self._memory.get(key)

    def put(self, key: str, response: str) -> None:
        """Keeps a response; the first one for a key stays in the file."""
        self._remember(key, response)
        if self._file is not None:
            with contextlib.suppress(sqlite3.Error):
                self._file.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, response))

    def _remember(self, key: str, response: str) -> None:
        if len(self._memory) >= MOST:
            del self._memory[next(iter(self._memory))]
        self._memory[key] = response

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
