"""Clients that mean no good, at a small application with the endpoint's limits."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from gspo.config.training import ServeConfig
from gspo.serving import connections
from gspo.serving.connections import EndpointServer, address_of, listener, running
from gspo.serving.limits import RequestLimits
from tests.patience import PATIENCE

KEY = "x"


class Small:
    """Answers every request but one for /wait."""

    def __init__(self):
        self.waiting, self.server = threading.Semaphore(0), None

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/wait":
            self.waiting.release()
            await asyncio.sleep(PATIENCE)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"here"})


@contextlib.contextmanager
def small(**settings):
    """The application and its address."""
    serve, app = ServeConfig(**settings), Small()
    with contextlib.closing(listener(serve)) as listening:
        app.server = EndpointServer(RequestLimits(app, KEY, serve), listening, serve)
        with running(app.server):
            yield app, listening.getsockname()


def test_a_request_that_the_end_of_the_server_cuts_off_is_told_so(monkeypatch):
    monkeypatch.setattr(connections, "FAREWELL", PATIENCE)
    monkeypatch.setattr(connections, "GRACE", 1)
    with small() as (app, address):
        waiting = opened(address, asking("/wait"))
        assert app.waiting.acquire(timeout=PATIENCE)
    received = b"".join(iter(lambda: waiting.recv(1000), b""))
    assert received.startswith(b"HTTP/1.1 503") and b"the run has ended before" in received


def opened(address, sent=b""):
    connection = socket.create_connection(address[:2], timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def asking(path="/", method="GET", more="", key=KEY):
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n{more}\r\n".encode()


def answered(connection):
    """Whether a whole response comes."""
    received = b""
    while not received.endswith(b"here"):
        piece = connection.recv(1000)
        assert piece, received
        received += piece
    return received.startswith(b"HTTP/1.1 200")


def test_too_many_connections_are_refused_until_some_close(monkeypatch):
    monkeypatch.setattr(connections, "SPARE", 2)
    with small(max_concurrent=2) as (app, address):
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(opened(address))
            with opened(address, asking()) as late:
                assert late.recv(12) == b"HTTP/1.1 503"
        while app.server.server_state.connections:
            time.sleep(0.01)
        with opened(address, asking()) as after:
            assert answered(after)


@pytest.mark.parametrize(
    ("host", "url", "reachable"),
    [("127.0.0.1", "127.0.0.1", False), ("localhost", "", False), ("0.0.0.0", "127.0.0.1", True), ("::", "[::1]", True)],
)
def test_addresses(host, url, reachable):
    try:
        listening = listener(ServeConfig(host=host))
    except ValueError:
        if ":" in host:
            pytest.skip("no IPv6 here")
        raise
    with listening:
        address, others = address_of(listening)
        assert others == reachable and address.endswith(f":{listening.getsockname()[1]}") and address.startswith(url)
        socket.create_connection((url.strip("[]") or host, listening.getsockname()[1]), timeout=PATIENCE).close()


def test_where_nothing_can_listen():
    with listener(ServeConfig()) as taken:
        for host, port in (("127.0.0.1", taken.getsockname()[1]), ("203.0.113.1", 0), ("a..b", 0)):
            with pytest.raises(ValueError, match="nothing can listen there"):
                listener(ServeConfig(host=host, port=port))
