"""Weights on their way from a trainer to the workers of a vLLM engine, through a process group of torch.

Both sides load this file, which needs torch alone. The trainer is rank 0 and broadcasts. A layer is two broadcasts: the
sizes of what follows, [2] int64, then bytes [total]: a table as JSON, and the tensors that it names. Two zeros are the end,
two -1 say that the trainer has given up. No wait is longer than its limit.

Where trainer and workers share a device the bytes stay where they are ("ipc"): a ticket is broadcast in their place, that
says where they lie. All wait for one another before the next layer is made: of few layers at a time the bytes are there.
"""

import json
import math
import os
import socket
import threading
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

ALIGNED = 16  # bytes: where a tensor begins
END, GIVEN_UP = (0, 0), (-1, -1)
PAUSE = 5e-4  # seconds between two looks at a broadcast
NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_setting = threading.Lock()  # engines are joined at the same time, each in a thread


def facing(host, port):
    """The address of this machine that another one at `host`, or a program of its own, reaches. Raises OSError."""
    kind, *_, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as way:
        way.connect(there)  # nothing is sent
        return str(way.getsockname()[0])


def hosted(address, size, seconds):
    """A store at this address alone, through which `size` ranks find one another, and its port."""
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listener.getsockname()[1]
    limit = timedelta(seconds=seconds)
    store = dist.TCPStore(
        address, port, size, True, wait_for_workers=False, timeout=limit, master_listen_fd=listener.detach()
    )  # fmt: skip
    return store, port


def store_at(address, port, size, seconds):
    """The store that another process hosts."""
    return dist.TCPStore(address, port, size, False, wait_for_workers=False, timeout=timedelta(seconds=seconds))


def join(store, rank, size, backend, address, device, seconds):
    """The process group of all ranks, each of which has called this. backend: "nccl", "gloo", or "ipc", which is gloo too.
    address: of this machine, at which gloo listens. device: of the tensors. seconds: that a broadcast may take. Raises
    RuntimeError.
    """
    if backend != "nccl":
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=seconds)
        group = gloo(store, rank, size, options)
    else:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(days=1)  # `ended` has the limit: at its own, NCCL's would end this process
        with _errors_are_told():
            group = dist.ProcessGroupNCCL(store, rank, size, options)
    ended([begun(group, torch.zeros(1, dtype=torch.uint8, device=device))], seconds)  # NCCL connects at its first use
    return group


@contextmanager
def _errors_are_told():
    """A group of NCCL that is made meanwhile does not end this process where another one is gone."""
    with _setting:
        before = os.environ.get(NCCL_ERRORS)
        os.environ[NCCL_ERRORS] = "0"
        try:
            yield
        finally:
            os.environ.pop(NCCL_ERRORS, None)
            if before is not None:
                os.environ[NCCL_ERRORS] = before


def begun(group, tensor):
    """A broadcast of rank 0's tensor, under way."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    return group.broadcast([tensor], options)


def ended(works, seconds, check=lambda: None):
    """Waits for broadcasts. check: is called again and again, and may raise. Raises RuntimeError where one fails or takes
    longer.
    """
    until = time.monotonic() + seconds
    for work in works:
        while not work.is_completed():
            check()
            if time.monotonic() > until:
                raise RuntimeError("a broadcast of weights was not done in time")
            time.sleep(PAUSE)
        work.wait()  # raises what went wrong


def packed(layer, room=None):
    """A layer as bytes, and their sizes: the table's, and all. layer: tensors by name. room: makes so many bytes; None: on
    the device of the layer.
    """
    table, at = [], 0
    for name, x in layer.items():
        table.append([name, str(x.dtype).removeprefix("torch."), list(x.shape), at])
        at += _aligned(x.numel() * x.element_size())
    words = json.dumps(table).encode()
    words += b" " * (_aligned(len(words)) - len(words))
    size = len(words) + at
    body = room(size) if room else torch.empty(size, dtype=torch.uint8, device=next(iter(layer.values())).device)
    body[: len(words)] = torch.frombuffer(bytearray(words), dtype=torch.uint8)
    for (_, _, _, begin), x in zip(table, layer.values()):
        data = x.detach().contiguous().reshape(-1).view(torch.uint8)
        body[len(words) + begin :][: len(data)] = data
    return (len(words), len(body)), body


def _aligned(size):
    return math.ceil(size / ALIGNED) * ALIGNED


def unpacked(body, head):
    """The names and tensors of a layer, which lie in its bytes. head: the size of the table."""
    for name, dtype, shape, begin in json.loads(body[:head].cpu().numpy().tobytes()):
        kind = getattr(torch, dtype)
        size = math.prod(shape) * kind.itemsize
        yield name, body[head + begin :][:size].view(kind).view(shape)


def room(path, size):
    """Bytes [size] in a new file, which other processes on this machine may map. Raises OSError where there is no room."""
    with open(path, "xb") as file:
        os.posix_fallocate(file.fileno(), 0, size)  # else this process dies as it writes where there is none
    return torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)


def ticket(sizes, body):
    """What a worker on the same device needs to know of a layer, bytes as a tensor: its sizes, and where its bytes lie: the
    name of a file, or what torch tells other processes of a GPU's memory.
    """
    at = body.untyped_storage().filename
    if body.device.type != "cpu":
        at = [x.hex() if isinstance(x, bytes) else x for x in reduce_tensor(body)[1][7:]]  # what follows its device
    return torch.frombuffer(bytearray(json.dumps([*sizes, at]).encode()), dtype=torch.uint8)


def fetched(words, device):
    """The size of the table and the bytes of which a ticket tells, where they lie. device: the worker's, whose number may
    be another than the trainer's.
    """
    head, size, at = json.loads(words.numpy().tobytes())
    if isinstance(at, str):
        return head, torch.from_file(at, shared=False, size=size, dtype=torch.uint8)
    storage = [bytes.fromhex(x) if isinstance(x, str) else x for x in at]
    of = torch.Tensor, torch.Size([size]), (1,), 0, torch.storage.TypedStorage, torch.uint8
    return head, rebuild_cuda_tensor(*of, device.index or 0, *storage)


def shared(group, device, seconds):
    """As `received`, where both are on one device."""
    sizes = torch.empty(2, dtype=torch.int64)
    while True:
        ended([begun(group, sizes)], seconds)
        told = tuple(sizes.tolist())
        if not _follows(told):
            return
        words = torch.empty(told[0], dtype=torch.uint8)
        ended([begun(group, words)], seconds)
        head, body = fetched(words, device)
        yield from unpacked(body, head)
        del body  # a GPU's memory goes back to the trainer with it
        ended([group.barrier()], seconds)


def _follows(told):
    """Whether a layer follows these sizes. Raises RuntimeError where the trainer has given up."""
    if told == GIVEN_UP:
        raise RuntimeError("the trainer has given up in the middle of the weights")
    return told != END


def received(group, device, seconds):
    """The names and tensors that rank 0 sends, layer by layer. device: where they are to lie. seconds: that a broadcast may
    take. Raises RuntimeError where it gives up.
    """
    sizes = torch.empty(2, dtype=torch.int64, device=device)
    while True:
        ended([begun(group, sizes)], seconds)
        head, total = told = tuple(sizes.tolist())
        if not _follows(told):
            return
        body = torch.empty(total, dtype=torch.uint8, device=device)  # a new one: vLLM keeps tensors until a layer is whole
        ended([begun(group, body)], seconds)
        yield from unpacked(body, head)
