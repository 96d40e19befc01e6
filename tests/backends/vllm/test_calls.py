"""What is asked of a server over HTTP: it has a limit over all of it, and answers that are none are told of."""

import asyncio
import socket
import threading
import time

import pytest

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.server import WORKERS, Server, Swap

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


ASKS = {
    "call": lambda server: server.call("/pause", {}),
    "get": lambda server: server.call("/weight_info"),
    "workers": lambda server: server.workers("gspo_place"),
    "swap": lambda server: server.swap(Swap(1)),
    "ask": lambda server: asyncio.run(server.ask({}, 0.3)),
}


def test_a_server_that_sends_a_byte_now_and_then_is_given_up(raw, subtests):
    """Each of its bytes comes in time."""
    server = raw(OK + b"Content-Length: 100000\r\n\r\n", b" ")
    server.sync_timeout = 0.3
    for name, ask in ASKS.items():
        with subtests.test(name):
            begin, setting = time.monotonic(), "sampler.timeout" if name == "ask" else "sampler.sync_timeout"
            with pytest.raises(EngineError, match=rf"it has not answered for 0\.3 s \({setting}\)"):
                ask(server)
            assert time.monotonic() - begin > 0.25


def test_what_is_no_answer_of_workers_names_the_engine_the_path_and_itself(raw, subtests):
    for body, shown in ((b"oops", "'oops'"), (b'{"detail": 1}', "'detail': 1"), (b"null", "None")):
        with subtests.test(body):
            server = raw(OK + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            with pytest.raises(EngineError) as caught:
                server.workers("gspo_place")
            assert str(caught.value).startswith(f"{server.name}{WORKERS}: ") and shown in str(caught.value)


def test_what_is_no_http_is_the_engines_fault(raw, subtests):
    for answer in (b"", b"nothing of HTTP\r\n\r\n"):
        for name in ("call", "ask"):
            with subtests.test(name, answer=answer), pytest.raises(EngineError, match="Error"):
                ASKS[name](raw(answer))


def test_a_login_in_an_address_is_not_told(subtests):
    server = Server("http://user:secret@127.0.0.1:9")
    asks = {"call": ASKS["call"], "workers": ASKS["workers"], "check": Server.check, "start": lambda one: one._wait(0.0)}
    for name, ask in asks.items():
        with subtests.test(name):
            with pytest.raises((EngineError, ValueError)) as caught:
                ask(server)
            assert "secret" not in str(caught.value) and "127.0.0.1:9" in str(caught.value)
