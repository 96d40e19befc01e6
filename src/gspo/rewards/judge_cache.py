"""A cache of judge responses: in memory, and in an SQLite file that several processes may share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

MOST = 100_000  # responses kept in memory
PATIENCE = 30.0  # seconds to wait while another process writes


def key_of(values: Any) -> str:
    """Hash of everything that determines a response, given as plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()


class Cache:
    """Responses by key. The file holds hashes and responses, never the questions."""

    def __init__(self, path: str | None, where: str) -> None:
        """path: The file; None: memory only. Raises ValueError that names the config key `where` if the file is unusable."""
        self._memory: dict[str, str] = {}
        self._file: sqlite3.Connection | None = None
        if path is None:
            return
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # After this thread, only the judge's request thread uses it.
            self._file = sqlite3.connect(Path(path), PATIENCE, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            self.close()
            raise ValueError(f"{where} = {path!r}: cannot be used as a cache ({error}); name another file") from None

    def get(self, key: str) -> str | None:
        """The cached response, or None."""
        if key not in self._memory and self._file is not None:
            with contextlib.suppress(sqlite3.Error):  # the cache is best effort
                for (response,) in self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)):
                    self._remember(key, response)
        return self._memory.get(key)

    def put(self, key: str, response: str) -> None:
        """Stores a response; the file keeps the first one of each key."""
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
