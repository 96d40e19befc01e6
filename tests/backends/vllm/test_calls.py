"""What is asked of a server over HTTP: it has a limit over all of it, and answers that are none are told of."""

import asyncio
import os
import resource
import socket
import threading
import time

import pytest

from gspo.backends.vllm import server as module
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.server import WORKERS, Server, Swap
from tests.patience import PATIENCE

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


class Raw:
    """A server that answers every request with these bytes, then with `drops` every 0.05 s."""

    def __init__(self, answer, drops=b""):
        self.answer, self.drops, self.over = answer, drops, threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.say, args=(connection,), daemon=True).start()

    def say(self, connection):
        try:
            connection.recv(65536)
            connection.sendall(self.answer)
            while self.drops and not self.over.wait(0.05):
                connection.sendall(self.drops)
        except OSError:
            pass
        finally:
            connection.close()


@pytest.fixture
def raw():
    made = []

    def make(*given):
        made.append(Raw(*given))
        return Server(made[-1].url)

    yield make
    for one in made:
        one.over.set()
        one.socket.close()


def with_length(body, kind=b"application/json"):
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)


ASKS = {
    "call": lambda server: server.call("/pause", {}),
    "get": lambda server: server.call("/weight_info"),
    "workers": lambda server: server.workers("gspo_place"),
    "swap": lambda server: server.swap(Swap(1)),
    "ask": lambda server: asyncio.run(server.ask({}, 0.6)),
}


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize(
    ("answer", "drops"),
    [(OK + b"Content-Length: 100000\r\n\r\n", b" "), (OK + b"X-Header: ", b"x"), (OK + b"Transfer-Encoding: chunked\r\n\r\n",
      b"1\r\n \r\n")],
    ids=["body", "header", "chunks"],
)  # fmt: skip
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(raw, monkeypatch, ask, answer, drops):
    """Each of its bytes comes in time."""
    monkeypatch.setattr(module, "CONTROL", 0.6)
    begin = time.monotonic()
    with pytest.raises(EngineError, match=r"it has not answered for 0\.6 s"):
        ASKS[ask](raw(answer, drops))
    assert time.monotonic() - begin > 0.5


def test_one_that_never_ends_to_say_that_it_is_up_is_not(raw):
    assert not raw(OK + b"X-Header: ", b"x").answers()


def test_a_limit_holds_in_a_thread_with_a_loop_of_its_own(raw, monkeypatch):
    """As that of a notebook."""
    monkeypatch.setattr(module, "CONTROL", PATIENCE)

    async def cell():
        server = raw(with_length(b"{}"))
        return server.answers(), server.call("/resume", {})

    assert asyncio.run(cell()) == (True, {})


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"oops", "oops"), (b"[" * 100_000, "[[["), (b"9" * 5000, "999"), (b'{"results": {"a": 1}}', "'a': 1"),
        (b'{"results": []}', "results"), (b"", "nothing"), (b"null", "None"), (b"\xff\xfe\x00", "cannot be read"),
    ],
    ids=lambda body: repr(body[:20]),
)  # fmt: skip
def test_what_is_no_answer_of_workers_names_the_engine_the_path_and_itself(raw, body, shown):
    server = raw(with_length(body))
    for path, ask in ((WORKERS, lambda: server.workers("gspo_place")), ("/pause", lambda: server.swap(Swap(1)))):
        if body.startswith(b"{") and path == "/pause":
            continue  # any object says that it was done
        with pytest.raises(EngineError) as caught:
            ask()
        assert str(caught.value).startswith(f"{server.name}{path}: ") and shown in str(caught.value)


@pytest.mark.parametrize("path", ["/pause", WORKERS, "/reset_prefix_cache", "/update_weight_version", "/resume"])
def test_a_page_that_a_proxy_shows_is_no_swap(engine, path):
    """With status 200: the engine behind it was told nothing."""
    engine.pages.add(path)
    server = Server(engine.url)
    with pytest.raises(EngineError, match=rf"^{server.name}{path}: .*<html>"):
        server.swap(Swap(1))
    assert engine.asked[-1][0] == path


def test_a_login_in_an_address_is_not_told():
    server = Server("http://user:secret@127.0.0.1:9")
    for ask in (lambda: server.call("/x", {}), lambda: server.workers("x"), server.check, lambda: server._wait(None)):
        server._over = True  # it waits for nobody
        with pytest.raises((EngineError, ValueError)) as caught:
            ask()
        assert "secret" not in str(caught.value) and "127.0.0.1:9" in str(caught.value)


NO_GZIP = with_length(b"no gzip").replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
NO_LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"


@pytest.mark.parametrize("answer", [b"", b"nothing of HTTP\r\n\r\n", NO_LENGTH, NO_GZIP])
@pytest.mark.parametrize("ask", ["call", "ask"])
def test_what_is_no_http_is_the_engines_fault(raw, answer, ask):
    with pytest.raises(EngineError, match="Error"):
        ASKS[ask](raw(answer))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine")  # a loop half made
def test_no_files_left_to_ask_with_are_told(raw):
    """As EngineError: those who wait for an engine hear of it."""
    server = raw(with_length(b"{}"))
    first = os.dup(0)
    os.close(first)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first, before[1]))
    try:
        with pytest.raises(EngineError, match="Too many open files"):
            server.call("/pause", {})
        assert not server.answers()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
