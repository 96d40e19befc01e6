"""The endpoint under requests that nobody thought of: with any JSON in their fields, cut off, or never ended."""

import json
import socket
import struct
import time
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.serving.schema import ChatRequest, TrainRequest
from tests.agents.talking import TOOLS
from tests.campaign import CAMPAIGN
from tests.leap import leap
from tests.patience import PATIENCE
from tests.serving.served import GOOD, post, server_of, serving, tiny

MOST = 8  # requests at once


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve") / "run"
    with serving(folder, hf=tiny(context=128), serve={"max_concurrent": MOST, "timeout": PATIENCE}) as served:
        yield served


def root(model):
    return model.base_url.removesuffix("/v1")


def answers(model):
    """Asks again once there is room for as many requests as ever."""
    assert httpx.get(f"{root(model)}/health", timeout=PATIENCE).json() == {"status": "ok"}
    while (response := post(model, "/chat/completions", GOOD)).status_code == 429:
        time.sleep(0.1)
    assert response.status_code == 200


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9)
ANY = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=9), part, max_size=3), max_leaves=6
)
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGE = {"role": "assistant", "content": "x", "tool_calls": [CALL]}
TRAJECTORY = {"messages_and_choices": [MESSAGE], "reward": 1.0, "metrics": {"a": 1}}
BODIES = {
    "/chat/completions": dict.fromkeys(ChatRequest.model_fields) | GOOD | {"messages": [MESSAGE], "tools": TOOLS, "n": 1},
    "/train": dict.fromkeys(TrainRequest.model_fields) | {"groups": [{"trajectories": [TRAJECTORY] * 2}]},
}


@st.composite
def changed(draw, value):
    """A body in which one part is anything."""
    inner = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    if not inner or draw(st.integers(0, 3)) == 0:
        return draw(ANY)
    key = draw(st.sampled_from(inner))
    part = draw(changed(value[key]))
    return value | {key: part} if isinstance(value, dict) else [*value[:key], part, *value[key + 1 :]]


@settings(max_examples=1000 if CAMPAIGN else 60, deadline=None)
@given(data=st.data(), path=st.sampled_from(list(BODIES)))
def test_generated_requests(model, data, path):
    """Each is answered, or refused with the reason."""
    answer = post(model, path, data.draw(changed(BODIES[path])))
    if answer.status_code != 200:
        assert answer.status_code in (400, 404) and answer.json()["error"]["message"]


HEADERS = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "


def opened(model, body, length=None):
    """A connection on which this much of a request was sent. length: as it claims; None: chunked."""
    address = urlsplit(model.base_url)
    connection = socket.create_connection((address.hostname, address.port), timeout=PATIENCE)
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    sent = f"{len(body):x}\r\n".encode() + body + b"\r\n" if length is None else body
    connection.sendall(f"{HEADERS}{model.api_key}\r\n{size}\r\n\r\n".encode() + sent)
    return connection


def dropped(connection):
    """Closed by a reset, as a process that dies leaves it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


BODY = json.dumps(GOOD | {"n": 4}).encode()
STREAM = json.dumps(GOOD | {"n": 4, "stream": True}).encode()


@pytest.mark.parametrize(
    ("body", "length", "read"),
    [(BODY[:20], None, 0), (BODY, len(BODY), 0), (STREAM, len(STREAM), 40)],
    ids=["in its body", "before the response", "in the stream"],
)
def test_clients_that_drop_the_connection_leave_room_for_others(model, body, length, read):
    for _ in range(2 * MOST):
        connection = opened(model, body, length)
        if read:
            assert connection.recv(read).startswith(b"HTTP/1.1 200")
        dropped(connection)
    answers(model)


def test_a_body_that_never_ends_is_given_up(model):
    waiting = [opened(model, BODY[:20], length) for length in (len(BODY), None) for _ in range(MOST // 2)]
    while (status := post(model, "/chat/completions", GOOD).status_code) == 200:  # some are still on their way
        time.sleep(0.01)
    assert status == 429
    leap(server_of(model).servers[0].get_loop())
    for connection in waiting:
        assert connection.recv(12) == b"HTTP/1.1 408"
        connection.close()
    answers(model)
