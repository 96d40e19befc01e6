"""The report of a run as a page that follows it, served to this machine's browsers alone: `gspo watch`."""

from __future__ import annotations

import logging
import secrets
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gspo.report.page import live_page

logger = logging.getLogger(__name__)
HOST = "127.0.0.1"
READ = ("config.toml", "metrics.jsonl", "events.jsonl", "evaluations.jsonl", "rollouts.jsonl")


class LivePage(ThreadingHTTPServer):
    """Serves the page of the run in `folder` at `url`, which has a random token. It only reads the folder.

    Raises ValueError if the folder is not that of a run, OSError if the port is in use. port: 0 takes a free one.
    """

    daemon_threads = True
    allow_reuse_port = False  # newer versions of Python let two servers share one

    def __init__(self, folder: Path, port: int = 0) -> None:
        made = (folder / "config.toml").is_file() and (folder / "checkpoints").is_dir()  # though it may have no step yet
        if not made and not (folder / "metrics.jsonl").is_file():
            what = "not a run folder" if folder.is_dir() else "no such folder"
            raise ValueError(f"{folder}: {what}; give the folder of a run (log.dir) that has begun")
        self.folder = folder
        self._lock = threading.Lock()
        self._tag, self._page = "", ""
        super().__init__((HOST, port), _Handler)
        self.path = f"/?token={secrets.token_urlsafe(24)}"

    @property
    def url(self) -> str:
        """The address with its token."""
        return f"http://{HOST}:{self.server_address[1]}{self.path}"

    def page(self) -> tuple[str, str]:
        """What identifies the state of the run's files, and the page of that state. Raises OSError if they are gone."""
        with self._lock:  # two browsers share one rendering
            self.folder.stat()
            stats = [path.stat() if (path := self.folder / name).exists() else None for name in READ]
            tag = "-".join(f"{stat.st_size:x}.{stat.st_mtime_ns:x}" if stat else "" for stat in stats)
            if tag != self._tag:
                self._page = live_page(self.folder)
                self._tag = tag
            return f'"{tag}"', self._page

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs an error of a request, unless the browser has closed the connection."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.error("the page could not be made", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: LivePage
    server_version, sys_version = "gspo", ""
    timeout = 30  # seconds that a browser may be silent

    def do_GET(self) -> None:
        # Another site's page may reach this port by its own name (DNS rebinding), but then it is in the Host header.
        name = (self.headers.get("Host") or "").rpartition(":")[0]
        if name not in (HOST, "localhost") or not secrets.compare_digest(self.path.encode(), self.server.path.encode()):
            return self._send(HTTPStatus.FORBIDDEN, "Open the address that gspo watch has printed, with its token.")
        try:
            tag, page = self.server.page()
        except OSError as error:
            what = f"the run folder cannot be read ({error.strerror}). This is what it last showed."
            return self._send(HTTPStatus.GONE, what)
        known = self.headers.get("If-None-Match") == tag
        self._send(HTTPStatus.NOT_MODIFIED if known else HTTPStatus.OK, "" if known else page, "html", ETag=tag)

    def _send(self, status: HTTPStatus, text: str, kind: str = "plain", **more: str) -> None:
        body = text.encode()
        self.send_response(status)
        headers = {"Content-Type": f"text/{kind}; charset=utf-8", "Content-Length": str(len(body))}
        safe = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
        for name, value in (headers | safe | {"X-Frame-Options": "DENY"} | more).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        logger.debug(format, *arguments)
