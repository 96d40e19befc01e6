"""A cache of judge responses: an SQLite database in memory, or in a file that several processes may share."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds to wait while another process writes
PAGES = 65_536  # of 4 KiB: what the database in memory may take


def key_of(values: Any) -> str:
    """Hash of everything that determines a response, given as plain values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()


class Cache:
    """Responses by key. It holds hashes and responses, never the questions. It is best effort: what fails is not cached."""

    def __init__(self, path: str | None, where: str) -> None:
        """path: The file; None: memory only. Raises ValueError that names the config key `where` if the file is unusable."""
        try:
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            # After this thread, only the judge's request thread uses it.
            self._database = sqlite3.connect(path or ":memory:", PATIENCE, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode = WAL" if path else f"PRAGMA max_page_count = {PAGES}")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            raise ValueError(f"{where} = {path!r}: cannot be used as a cache ({error}); name another file") from None

    def get(self, key: str) -> str | None:
        """The cached response, or None."""
        with contextlib.suppress(sqlite3.Error):
            for (response,) in self._database.execute("SELECT answer FROM answers WHERE key = ?", (key,)):
                return str(response)
        return None

    def put(self, key: str, response: str) -> None:
        """Stores a response, unless there is one."""
        with contextlib.suppress(sqlite3.Error, UnicodeError):
            self._database.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (key, response))

    def close(self) -> None:
        """Closes the database."""
        self._database.close()
