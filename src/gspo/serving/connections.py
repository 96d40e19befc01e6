"""Who may hold a connection to the endpoint, and for how long. uvicorn leaves that open; here it holds before any key.

A connection waits until a request with the key has come in on it. Those that wait are bounded in time, and where there
are too many connections the one that has waited longest is closed: so idle ones shut nobody out. Newcomers wait at the
listening socket only while every connection has a request under way, or no file can be opened.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gspo.config.training import ServeConfig

REQUEST = 10.0  # seconds from a connection's, or a request's, first sign of life until a request with the key is there
IDLE = 75.0  # seconds that a connection is kept after a response
AGAIN = 1.0  # seconds until the next attempt where no file could be opened
FAREWELL = 1.0  # seconds in which those whose request was given up are told so
SPARE = 256  # connections beside those of serve.max_concurrent requests
AT_ONCE = 32  # connections that are taken in between two looks at those that are there
BACKLOG = 2048  # connections that wait at the listening socket
LONGEST_HEADERS = 16384  # bytes


def listener(serve: ServeConfig) -> socket.socket:
    """A socket that listens where the configuration says. Raises ValueError where nothing can."""
    try:
        found = socket.getaddrinfo(serve.host, serve.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"serve.host = {serve.host!r}, serve.port = {serve.port}: nothing can listen there ({error}); choose an address "
            "of this machine, and a free port or 0"
        ) from None


def address_of(listening: socket.socket) -> tuple[str, bool]:
    """The address for clients on this machine, as a URL has it, and whether other machines can reach it too."""
    host, port = listening.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "::1" if address.version == 6 else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", not address.is_loopback


def most_connections(serve: ServeConfig) -> int:
    """Connections at the same time: at most half of the files that this process may still open. The rest is for training,
    and for agents in this process.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = serve.max_concurrent + SPARE
    if most == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, (most - len(os.listdir("/dev/fd"))) // 2))


class EndpointServer(uvicorn.Server):
    """uvicorn's, with connections from a Door."""

    def __init__(self, app: Any, listening: socket.socket, serve: ServeConfig) -> None:
        settings = uvicorn.Config(
            app, http="h11", ws="none", loop="asyncio", lifespan="off", log_level="error", access_log=False,
            proxy_headers=False, timeout_keep_alive=int(IDLE), timeout_graceful_shutdown=5,
            h11_max_incomplete_event_size=LONGEST_HEADERS,
        )  # fmt: skip
        super().__init__(settings)
        self.listening, self.serving = listening, serve

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Opens the door; uvicorn itself listens nowhere."""
        self.door = Door(self, self.listening, most_connections(self.serving))
        await super().startup([])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes it. Requests without a response, and responses that nobody has read, are given up after five seconds."""
        self.door.close()
        await super().shutdown([])
        if given_up := list(self.server_state.tasks):
            await asyncio.wait(given_up, timeout=FAREWELL)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


@contextmanager
def running(server: EndpointServer) -> Iterator[None]:
    """A server in a thread of its own, until the end of the context."""
    thread = threading.Thread(target=server.run, daemon=True)
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


class Door:
    """Takes connections in, at most `most` at a time.

    asyncio's own way to accept has no bound, and it tries thousands of times a second where no file can be opened.
    """

    def __init__(self, server: EndpointServer, listening: socket.socket, most: int) -> None:
        self.server, self.listening, self.most = server, listening, most
        self.waiting: dict[Connection, None] = {}  # longest first
        self._inside: set[Connection] = set()
        self._begun: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        listening.setblocking(False)
        self._open()

    def close(self) -> None:
        """Takes nobody in any more."""
        self._closed = True
        self._shut()
        self.listening.close()

    def wait(self, connection: Connection) -> None:
        """A connection that has no request under way: from now on it may have to make room."""
        if connection in self._inside:
            self.waiting.setdefault(connection)
            self._open()

    def busy(self, connection: Connection) -> None:
        """A connection with a request that has the key."""
        self.waiting.pop(connection, None)

    def leave(self, connection: Connection) -> None:
        """A connection that has ended, or is about to."""
        self.waiting.pop(connection, None)
        if connection in self._inside:
            self._inside.remove(connection)
            self._open()

    def _open(self) -> None:
        if not self._closed:
            self._loop.add_reader(self.listening, self._accept)

    def _shut(self) -> None:
        if self.listening.fileno() >= 0:
            self._loop.remove_reader(self.listening)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            full = len(self._inside) >= self.most
            if full and not self.waiting:
                self._shut()  # until one waits or leaves
                return
            try:
                accepted, _ = self.listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no file can be opened
                self._shut()
                self._loop.call_later(AGAIN, self._open)
                return
            if full:
                next(iter(self.waiting)).end()
            accepted.setblocking(False)
            connection = Connection(self)
            self._inside.add(connection)
            task = self._loop.create_task(self._take(connection, accepted))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    async def _take(self, connection: Connection, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:  # it has gone already
            accepted.close()
            self.leave(connection)


class Timer:
    """Calls `then` after some seconds, unless it is stopped before."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """Where it runs already, it goes on as it was."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, self._over)

    def stop(self) -> None:
        """It may be started again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _over(self) -> None:
        self._handle = None
        self.then()


class Connection(H11Protocol):
    """uvicorn's, ended where its client takes too long to send a request or to read a response."""

    def __init__(self, door: Door) -> None:
        server = door.server
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self.door, self.timeout, self._granted = door, server.serving.timeout, False
        self._asking = Timer(self._too_slow)  # until a request with the key has come in
        self._sending = Timer(self.end)  # until the response has been read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that writing is paused exactly while something is unread
        self.door.wait(self)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever brought it about."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._asking.stop()
        self._sending.stop()
        self.door.leave(self)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Waits again; what was sent may still have to be read, and the next request be there."""
        self._granted = False
        super().on_response_complete()
        self.door.wait(self)
        if not self.flow.write_paused:
            self._sending.stop()
        if self._answering or self.conn.trailing_data[0]:
            self._look()
        elif not self.flow.write_paused:
            self._asking.stop()

    def pause_writing(self) -> None:
        """Some of a response is unread."""
        super().pause_writing()
        self._sending.start(self.timeout)

    def resume_writing(self) -> None:
        """Nothing is unread any more."""
        super().resume_writing()
        if not (self._answering and self.cycle.response_started):
            self._sending.stop()

    def end(self) -> None:
        """Closes the connection at once, whatever is unsent or unread."""
        self.door.leave(self)
        self.transport.abort()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        """Counts the seconds until a request with the key, and asks to be told of it."""
        if self._answering:
            self.scope["gspo.granted"] = self._grant  # type: ignore[typeddict-unknown-key]
        if not self._granted:
            self._asking.start(REQUEST)

    def _grant(self) -> None:
        """The request has the key: from now on its own limits hold."""
        self._granted = True
        self._asking.stop()
        self.door.busy(self)

    def _too_slow(self) -> None:
        if self._answering and not self.cycle.response_started and not self.flow.write_paused:
            self._asking.start(REQUEST)  # the request is there: the server was held up
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0] and not self.flow.write_paused:
            self.send_400_response(f"The headers were not there within {REQUEST:g} seconds.")
            self._asking.start(REQUEST)
        else:
            self.end()
