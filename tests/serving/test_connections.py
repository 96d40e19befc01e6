"""Clients without the key, and clients that are slow on purpose, at a small application with the endpoint's limits."""

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gspo.config.training import ServeConfig
from gspo.serving import connections
from gspo.serving.connections import EndpointServer, address_of, listener, running
from gspo.serving.limits import RequestLimits
from tests.leap import leap
from tests.patience import PATIENCE

KEY = "x"


class Small:
    """Answers every request; one for /wait once it may."""

    def __init__(self):
        self.waiting, self.may, self.server = threading.Semaphore(0), threading.Event(), None

    def leap(self):
        """The server's time runs ahead, by more than it gives anybody."""
        leap(self.server.servers[0].get_loop())

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/wait":
            self.waiting.release()
            while not self.may.is_set():
                await asyncio.sleep(0.01)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"here"})


@contextlib.contextmanager
def small(**settings):
    """The application, its RequestLimits and its address."""
    serve, app = ServeConfig(**settings), Small()
    limits = RequestLimits(app, KEY, serve)
    with contextlib.closing(listener(serve)) as listening:
        app.server = EndpointServer(limits, listening, serve)
        with running(app.server):
            yield app, limits, listening.getsockname()
            app.may.set()


def test_a_request_that_the_end_of_the_server_cuts_off_is_told_so(monkeypatch):
    monkeypatch.setattr(connections, "FAREWELL", PATIENCE)
    serve, app = ServeConfig(), Small()
    with contextlib.closing(listener(serve)) as listening, ThreadPoolExecutor() as client:
        server = EndpointServer(RequestLimits(app, KEY, serve), listening, serve)
        server.config.timeout_graceful_shutdown = 1
        with running(server):
            url, headers = f"http://{address_of(listening)[0]}/wait", {"authorization": f"Bearer {KEY}"}
            response = client.submit(httpx.get, url, headers=headers, timeout=PATIENCE)
            assert app.waiting.acquire(timeout=PATIENCE)
        told = response.result(PATIENCE)
    assert told.status_code == 503 and "the run has ended before" in told.json()["error"]["message"]


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


def ended(connection):
    """Whether the server has closed it, or does so soon. What it sent is left out."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 20):
            pass
    return True


@pytest.fixture(scope="module")
def address():
    with small() as (_, _, bound):
        yield bound


def test_too_many_connections_are_refused_until_some_close(monkeypatch):
    monkeypatch.setattr(connections, "SPARE", 2)
    with small(max_concurrent=2) as (app, _, address):
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(opened(address))
            with opened(address, asking()) as late:
                assert late.recv(12) == b"HTTP/1.1 503"
        while app.server.server_state.connections:
            time.sleep(0.01)
        with opened(address, asking()) as after:
            assert answered(after)


@pytest.mark.parametrize("more", ["Content-Length: 500\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_body_that_drips_is_given_up(more):
    with small(timeout=PATIENCE) as (app, limits, address), opened(address, asking("/", "POST", more)) as connection:
        connection.settimeout(0.05)
        while not limits.running:
            time.sleep(0.01)
        received = b""
        with pytest.raises(ConnectionError):  # closed in the end, though it goes on and on
            while True:
                connection.sendall(b"1\r\nx\r\n" if "chunked" in more else b"x")
                with contextlib.suppress(TimeoutError):
                    received += connection.recv(1000)
                app.leap()
        while limits.running:
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 100_000, b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: x\r\n" * 10_000, b"400"),
        (b"GET /" + b"x" * 100_000, b"400"),
        (asking("/", "POST", "Content-Length: -1\r\n"), b"400"),
        (asking("/", "POST", "Content-Length: 1\r\nContent-Length: 2\r\n"), b"400"),
        (asking("/", "POST", f"Content-Length: {'9' * 30}\r\n"), b"400"),
        (asking("/", "POST", f"Content-Length: {1 << 60}\r\n"), b"413"),
        (asking("/", "POST", "Transfer-Encoding: chunked\r\n") + b"zz\r\n", b"400"),
        (asking("/", "POST", "Transfer-Encoding: gzip\r\n"), b"400"),
        (asking("/", "HEAD"), b"200"),
        (asking("/", "OPTIONS"), b"200"),
        (asking("/", more="Connection: Upgrade\r\nUpgrade: websocket\r\n"), b"200"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS\r\n\r\n", b"400"),
        (b"\x00" * 1000 + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/0.9\r\n\r\n", b"401"),
    ],
)
def test_odd_requests_are_answered(address, capfd, sent, status):
    with opened(address, sent) as connection:
        assert connection.recv(12) == b"HTTP/1.1 " + status
    with opened(address, asking() * 3) as connection:  # one after the other on one connection
        received = b""
        while received.count(b"here") < 3:
            received += connection.recv(1000)
    assert capfd.readouterr().err == ""


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
        for host, port in (
            ("127.0.0.1", taken.getsockname()[1]),
            ("203.0.113.1", 0),
            ("a..b", 0),
            ("a\0b", 0),
            ("x" * 300, 0),
        ):
            with pytest.raises(ValueError, match="nothing can listen there"):
                listener(ServeConfig(host=host, port=port))
