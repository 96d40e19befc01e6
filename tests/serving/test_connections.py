"""Clients without the key, and clients that are slow on purpose, at a small application with the endpoint's limits."""

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from gspo.config.training import ServeConfig
from gspo.serving import connections
from gspo.serving.connections import EndpointServer, address_of, listener, most_connections, running
from gspo.serving.limits import MOST_HELD, RequestLimits
from tests.leap import leap
from tests.patience import PATIENCE
from tests.serving.served import post, serving
from tests.serving.test_model import collected
from tests.serving.tools import GOOD

KEY = "x"
LARGE = b"x" * (1 << 25)  # more than the buffers of any connection hold


class Small:
    """Answers every request; one for /wait once it may, one for /large at length, one for /stall after it has held up all
    until it may, and longer than anybody has for a request.
    """

    def __init__(self):
        self.waiting, self.may, self.server = threading.Semaphore(0), threading.Event(), None

    def leap(self):
        """The server's time runs ahead, by more than it gives anybody."""
        leap(self.server.door._loop)

    async def __call__(self, scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/wait":
            self.waiting.release()
            while not self.may.is_set():
                await asyncio.sleep(0.01)
        if scope["path"] == "/stall":
            self.waiting.release()
            self.may.wait(PATIENCE)  # as a training step may hold this thread up
            self.leap()
        body = LARGE if scope["path"] == "/large" else b"here"
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


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


@pytest.fixture
def few_files():
    """A process that may open 128 files more than it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 128, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def address():
    with small() as (_, _, bound):
        yield bound


IDLERS = f"""
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
address, held = (sys.argv[1], int(sys.argv[2])), []
for number in range(400):
    held.append(socket.create_connection(address, timeout={PATIENCE}))
    held[-1].sendall([b"", b"POST /v1/chat/completions HTTP/1.1\\r\\nX-"][number % 2])
print("opened", flush=True)
sys.stdin.read()
"""


def test_idle_connections_without_a_key_stop_neither_training_nor_agents(tmp_path, few_files, capfd):
    with serving(tmp_path / "run") as model:
        at = urlsplit(model.base_url)
        command = [sys.executable, "-c", IDLERS, at.hostname, str(at.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as idlers:
            assert idlers.stdout.readline() == b"opened\n"
            assert post(model, "/chat/completions", GOOD).status_code == 200
            assert asyncio.run(model.train(asyncio.run(collected(model))))["step"] == 1
            assert len(os.listdir("/dev/fd")) < resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 32
            idlers.stdin.close()
    assert len(capfd.readouterr().err) < 2000


HALF = b"GET / HTTP/1.1\r\nX-"


def unread(app):
    """What its connections hold of requests that are not whole."""
    return [each.conn.trailing_data[0] for each in list(app.server.server_state.connections)]


@pytest.mark.parametrize("sent", [b"", HALF, asking(key="none") + HALF])
def test_who_sends_no_whole_request_is_not_kept(monkeypatch, sent):
    monkeypatch.setattr(connections, "REQUEST", PATIENCE)
    monkeypatch.setattr(connections, "IDLE", 1e9)  # longer, as it is
    with small() as (app, _, address), opened(address, sent) as connection:
        received = b""
        while sent.startswith(asking(key="none")) and not received.endswith(b"}"):
            received += connection.recv(1 << 16)
        while unread(app) != [sent and HALF]:
            time.sleep(0.01)
        app.leap()
        while piece := connection.recv(1 << 16):
            received += piece
            if b"The headers were not there" in received:  # it has as long again to read this
                app.leap()
        assert (b"The headers were not there within %g seconds" % PATIENCE in received) == bool(sent)
        assert (b"401" in received) == sent.startswith(asking(key="none"))


def test_who_sent_a_request_while_the_server_was_held_up_is_answered(monkeypatch):
    monkeypatch.setattr(connections, "REQUEST", PATIENCE)
    with small() as (app, _, address), opened(address) as patient, opened(address, asking("/stall")) as stalling:
        assert app.waiting.acquire(timeout=PATIENCE)
        patient.sendall(asking())
        app.may.set()
        assert answered(stalling) and answered(patient)


def test_who_pours_a_body_after_a_refusal_is_not_kept(monkeypatch):
    monkeypatch.setattr(connections, "REQUEST", PATIENCE)
    more = f"Content-Length: {1 << 40}\r\n"
    with small() as (app, _, address), opened(address, asking("/", "POST", more, key="none")) as connection:
        assert connection.recv(12) == b"HTTP/1.1 401"
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"x")
                time.sleep(0.01)
                app.leap()


def test_the_one_that_waited_longest_makes_room(monkeypatch):
    monkeypatch.setattr(connections, "SPARE", 1)
    with small(max_concurrent=2) as (_, _, address):
        first, second, third = [opened(address) for _ in range(3)]
        third.sendall(asking())
        assert answered(third)
        with opened(address, asking()) as fourth:
            assert answered(fourth) and ended(first)
        for connection in (second, third):
            connection.sendall(asking())
            assert answered(connection)
        for connection in (first, second, third):
            connection.close()


def test_while_all_have_requests_under_way_newcomers_wait(monkeypatch):
    monkeypatch.setattr(connections, "SPARE", 0)
    with small(max_concurrent=2) as (app, _, address):
        busy = [opened(address, asking("/wait")) for _ in range(2)]
        for _ in busy:
            assert app.waiting.acquire(timeout=PATIENCE)
        with opened(address, asking()) as newcomer:
            newcomer.settimeout(0.5)
            with pytest.raises(TimeoutError):
                newcomer.recv(1)
            app.may.set()
            newcomer.settimeout(PATIENCE)
            assert newcomer.recv(12) == b"HTTP/1.1 200"
        for connection in busy:
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()


def test_where_no_file_can_be_opened_clients_wait(few_files, capfd):
    with small() as (_, _, address), socket.socket() as client, contextlib.ExitStack() as stack:
        client.settimeout(PATIENCE)
        with contextlib.suppress(OSError):
            while True:
                stack.enter_context(open(os.devnull))
        client.connect(address)
        client.sendall(asking())
        client.settimeout(2)  # two attempts of the server
        with pytest.raises(TimeoutError):
            client.recv(1)
        stack.close()
        client.settimeout(PATIENCE)
        assert client.recv(12) == b"HTTP/1.1 200"
    assert capfd.readouterr().err == ""


def test_who_does_not_read_a_response_is_not_kept():
    serve = small(timeout=PATIENCE, max_concurrent=1)
    with serve as (app, limits, address), opened(address, asking("/large")) as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        with opened(address, asking()) as other:
            assert other.recv(12) == b"HTTP/1.1 429"  # it is still under way
        while limits.running:
            app.leap()
            time.sleep(0.05)
        headers = {"authorization": f"Bearer {KEY}"}
        assert httpx.get(f"http://{address[0]}:{address[1]}", headers=headers, timeout=PATIENCE).text == "here"


def test_who_reads_slowly_gets_everything():
    with small() as (_, _, address), opened(address, asking("/large", more="Connection: close\r\n")) as connection:
        received = bytearray()
        while piece := connection.recv(1 << 18):
            received += piece
            time.sleep(0.001)
        assert received.endswith(LARGE)


def test_refusals_that_nobody_reads_take_no_room(monkeypatch):
    """Thousands of requests without the key on one connection, whose responses fill every buffer."""
    monkeypatch.setattr(connections, "SPARE", 0)
    with small(max_concurrent=1) as (_, _, address), opened(address) as greedy:
        greedy.settimeout(1.0)
        with contextlib.suppress(OSError):
            while True:
                greedy.sendall(asking(key="none") * 1000)
        with opened(address, asking()) as connection:
            assert connection.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("more", ["Content-Length: 500\r\n", "Transfer-Encoding: chunked\r\n"])
def test_a_body_that_drips_is_given_up(monkeypatch, more):
    monkeypatch.setattr(connections, "REQUEST", PATIENCE)
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
        assert limits.running == limits.held == 0


def test_bodies_are_bounded_together():
    size = 1000
    with small(max_body=1024) as (_, limits, address), contextlib.ExitStack() as stack:
        more = f"Content-Length: {size + 1}\r\n"
        for _ in range(MOST_HELD + 5):
            stack.enter_context(opened(address, asking("/", "POST", more) + b"x" * size))
        while limits.running < MOST_HELD:
            time.sleep(0.01)
        assert limits.held <= MOST_HELD * 1024
    assert limits.held == 0


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


def test_there_are_never_more_connections_than_half_of_the_files(few_files):
    assert 32 <= most_connections(ServeConfig()) <= 64
    assert most_connections(ServeConfig(max_concurrent=1)) <= 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    assert most_connections(ServeConfig()) == 1024 + connections.SPARE


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
