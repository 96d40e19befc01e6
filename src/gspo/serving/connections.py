"""The endpoint's socket and its server: uvicorn, with limits on connections and idle time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from gspo.config.training import ServeConfig

IDLE = 75  # seconds that a connection is kept after a response; one without a request is kept (docs/agents.md, Safety)
GRACE = 5  # seconds that requests may take to finish when the server ends
FAREWELL = 1.0  # seconds in which clients of cancelled requests get their 503
SPARE = 256  # connections beside those of serve.max_concurrent requests


def listener(serve: ServeConfig) -> socket.socket:
    """A socket that listens at serve.host and serve.port. Raises ValueError if that is impossible."""
    try:
        family, _, _, _, address = socket.getaddrinfo(serve.host, serve.port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"serve.host = {serve.host!r}, serve.port = {serve.port}: nothing can listen there ({error}); choose an address "
            "of this machine, and a free port or 0"
        ) from None


def address_of(listening: socket.socket) -> tuple[str, bool]:
    """The address for clients on this machine, in a URL's notation, and whether other machines can reach it too."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", not address.is_loopback


class EndpointServer(uvicorn.Server):
    """uvicorn on a socket that listens already."""

    def __init__(self, app: Any, listening: socket.socket, serve: ServeConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app, http="h11", ws="none", loop="asyncio", lifespan="off", log_level="critical", access_log=False,
                proxy_headers=False, limit_concurrency=serve.max_concurrent + SPARE, timeout_keep_alive=IDLE,
                timeout_graceful_shutdown=GRACE,
            )
        )  # fmt: skip
        self.listening = listening

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops. Requests that are not answered within GRACE seconds are cancelled, and their clients get a 503."""
        await super().shutdown(sockets)
        if cancelled := list(self.server_state.tasks):
            await asyncio.wait(cancelled, timeout=FAREWELL)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def running(server: EndpointServer) -> Iterator[None]:
    """Runs a server in its own thread until the context exits."""
    thread = threading.Thread(target=server.run, args=([server.listening],), daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the endpoint did not start")
        time.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(10.0)
