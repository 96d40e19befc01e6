"""What a trainer sends and a worker receives: two processes, a process group of torch (gloo)."""

import inspect
import json
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from gspo.agents.threads import begin
from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.process_groups import Link
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
        came = wire.received(group, cpu, {PATIENCE}, bool(sys.argv[4:]))
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
def group(request):
    """The trainer's group with two workers, and these. param: further arguments of theirs."""
    store, port = wire.hosted("127.0.0.1", 3, PATIENCE)
    command, more = [sys.executable, "-c", RECEIVER, str(port)], getattr(request, "param", [])
    workers = [subprocess.Popen([*command, str(rank), "3", *more], stdout=subprocess.PIPE, text=True) for rank in (1, 2)]
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


@pytest.mark.parametrize("group", [["ipc"]], indirect=True)
def test_every_worker_reads_every_tensor_where_it_lies(group, tmp_path):
    """No layer comes before all have read the one before, and nothing but tickets is sent."""
    group, workers = group
    link, sent = Link(None, group, 0, CPU, "", ipc=True), []
    for number, layer in enumerate(LAYERS):
        path = tmp_path / str(number)
        sizes, body = wire.packed(layer, partial(wire.room, path))
        assert body.untyped_storage().filename == str(path) and len(body) == sizes[1] == path.stat().st_size
        wire.ended(link.send(sizes, body), PATIENCE)
        sent.append(len(wire.ticket(sizes, body)))
        path.unlink()  # whoever maps it keeps it
    wire.ended(link.send(wire.END), PATIENCE)
    assert said(workers) == [EXPECTED, EXPECTED] and max(sent) < 300


def test_a_ticket_for_memory_of_a_gpu_is_what_torch_tells_and_asks_for(monkeypatch):
    """Numbers and bytes, but for its device, which has another number in a worker. Not run on a GPU."""
    names = list(inspect.signature(rebuild_cuda_tensor).parameters)
    body = torch.empty(96, dtype=torch.uint8, device="meta")
    told = {
        "tensor_cls": torch.Tensor, "tensor_size": body.shape, "tensor_stride": body.stride(), "tensor_offset": 0,
        "storage_cls": type(body._typed_storage()), "dtype": torch.uint8, "storage_device": 1,
        "storage_handle": b"\x00\xffh", "storage_size_bytes": 96, "storage_offset_bytes": 512, "requires_grad": False,
        "ref_counter_handle": b"/torch_1_2", "ref_counter_offset": 3, "event_handle": b"e\x80", "event_sync_required": True,
    }  # fmt: skip
    monkeypatch.setattr(wire, "reduce_tensor", lambda x: (rebuild_cuda_tensor, tuple(told[name] for name in names)))
    monkeypatch.setattr(wire, "rebuild_cuda_tensor", lambda *args: dict(zip(names, args, strict=True)))
    head, asked = wire.fetched(wire.ticket((32, 96), body), torch.device("cuda", 0))
    assert head == 32 and asked == told | {"storage_device": 0}


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
