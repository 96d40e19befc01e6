"""The endpoint under requests that nobody thought of: made from its own OpenAPI document, cut off, or never ended."""

import json
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from urllib.parse import urlsplit

import httpx
import pytest

from tests.campaign import CAMPAIGN
from tests.leap import leap
from tests.patience import PATIENCE
from tests.serving.served import GOOD, post, server_of, serving, tiny

MOST = 8  # requests at once
# Examples for each route; the phase `coverage` makes a thousand more, and takes a minute.
EXAMPLES, PHASES, SEED = (60, "coverage,fuzzing", 1) if CAMPAIGN else (6, "fuzzing", 1)


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


def test_generated_requests(model, tmp_path):
    """No 5xx, no status or body that the document does not tell of, nothing without the key."""
    archive = tmp_path / "told.har"
    # Not every rule can be told in a schema, such as that a prompt must fit into the model.
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{root(model)}/openapi.json",
        "--header", f"Authorization: Bearer {model.api_key}", "--phases", PHASES,
        "--max-examples", str(EXAMPLES), "--seed", str(SEED), "--exclude-checks", "positive_data_acceptance",
        "--request-timeout", str(PATIENCE), "--suppress-health-check", "all", "--continue-on-failure",
        "--report", "har", "--report-har-path", str(archive),
    ]  # fmt: skip
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert process.returncode == 0, process.stdout[-5000:]
    entries = json.loads(archive.read_text())["log"]["entries"]
    statuses = Counter((urlsplit(entry["request"]["url"]).path, entry["response"]["status"]) for entry in entries)
    assert statuses["/v1/chat/completions", 200] and statuses["/v1/chat/completions", 400]
    assert statuses["/v1/train", 400] and sum(statuses.values()) > 2 * EXAMPLES
    answers(model)


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
