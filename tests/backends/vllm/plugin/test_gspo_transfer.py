"""What a trainer sends and a worker receives: two processes, a process group of torch (gloo)."""

import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from gspo.agents.threads import begin
from gspo.backends.vllm.plugin import gspo_transfer as wire
from tests.patience import PATIENCE

CPU = torch.device("cpu")
RECEIVER = f"""
import json, sys
sys.path.append({str(Path(wire.__file__).parent)!r})
import torch
import gspo_transfer as wire

port, rank, size = map(int, sys.argv[1:4])
cpu = torch.device("cpu")
store = wire.store_at("127.0.0.1", port, size, {PATIENCE})
group = wire.join(store, rank, size, "gloo", wire.facing("127.0.0.1", port), cpu, {PATIENCE})
while True:
    try:
        came = wire.received(group, cpu, {PATIENCE})
        got = [[name, str(x.dtype), list(x.shape), x.double().flatten().tolist()] for name, x in came]
    except RuntimeError as error:
        print(json.dumps(str(error)), flush=True)
        break
    print(json.dumps(got), flush=True)
"""
LAYERS = [
    {"a": torch.arange(15.0).view(3, 5).t(), "b": torch.tensor([1.5, -2.0, 3.0]).bfloat16(), "c": torch.tensor(7)},
    {"layers.0.norm": torch.ones(1, dtype=torch.float16), "empty": torch.zeros(0, 4), "é": torch.tensor([True, False])},
]
EXPECTED = [
    [name, str(x.dtype), list(x.shape), x.double().flatten().tolist()] for layer in LAYERS for name, x in layer.items()
]


@pytest.fixture
def group():
    """The trainer's group with two workers, and these."""
    store, port = wire.hosted("127.0.0.1", 3, PATIENCE)
    command = [sys.executable, "-c", RECEIVER, str(port)]
    workers = [subprocess.Popen([*command, str(rank), "3"], stdout=subprocess.PIPE, text=True) for rank in (1, 2)]
    yield wire.join(store, 0, 3, "gloo", "127.0.0.1", CPU, PATIENCE), workers
    for worker in workers:
        worker.kill()
        worker.wait()


def send(group, *tensors):
    wire.ended([wire.begun(group, x) for x in tensors], PATIENCE)


def said(workers):
    return [json.loads(worker.stdout.readline()) for worker in workers]


def test_every_worker_gets_every_tensor(group):
    """Of any type and shape, and where it does not lie in a row in memory; more than once."""
    group, workers = group
    for _ in range(2):
        for layer in LAYERS:
            sizes, body = wire.packed(layer)
            send(group, torch.tensor(sizes), body)
        send(group, torch.tensor(wire.END))
        assert said(workers) == [EXPECTED, EXPECTED]


def test_a_trainer_that_gives_up_is_heard(group):
    group, workers = group
    sizes, body = wire.packed(LAYERS[0])
    send(group, torch.tensor(sizes), body, torch.tensor(wire.GIVEN_UP))
    assert all("stopped in the middle" in text for text in said(workers))


def test_a_worker_that_is_gone_ends_the_wait(group):
    group, workers = group
    workers[0].kill()
    workers[0].wait()
    with pytest.raises(RuntimeError) as error:
        send(group, torch.zeros(2**24))
    assert "not done in time" not in str(error.value)


def test_a_broadcast_that_nobody_takes_has_a_limit():
    class Never:
        def is_completed(self):
            return False

    with pytest.raises(RuntimeError, match="was not done in time"):
        wire.ended([Never()], 0.1)


def test_an_error_is_heard_of_a_broadcast_that_tells_it_only_to_who_waits_with_a_limit():
    """As NCCL's does, which cannot run here."""

    class Broken:
        def is_completed(self):
            return True

        def wait(self, timeout=timedelta(0)):
            if timeout >= timedelta(milliseconds=1):  # less is none
                raise RuntimeError("a peer is gone")

    for seconds in (PATIENCE, 0.0):
        with pytest.raises(RuntimeError, match="a peer is gone"):
            wire.ended([Broken()], seconds)


def test_nothing_listens_beyond_the_address_that_is_needed():
    store, port = wire.hosted("127.0.0.1", 2, PATIENCE)
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"]
    assert listening == [f"0100007F:{port:04X}"]
    store.set("key", "value")
    assert wire.store_at("127.0.0.1", port, 2, PATIENCE).get("key") == b"value"


def test_groups_of_nccl_made_at_the_same_time_all_have_the_setting(monkeypatch):
    """The second begins while the first is made, and ends after it."""
    monkeypatch.setenv(wire.NCCL_ERRORS, "3")
    inside, seen = threading.Event(), []

    def first():
        with wire._report_errors():
            inside.set()
            time.sleep(0.2)

    def second():
        inside.wait()
        with wire._report_errors():
            seen.append(os.environ[wire.NCCL_ERRORS])

    for made in (begin(first), begin(second)):
        made.result()
    assert seen == ["0"] and os.environ[wire.NCCL_ERRORS] == "3"
