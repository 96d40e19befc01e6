"""Weights on their way from a trainer to the workers of a vLLM engine, through a process group of torch.

Both sides load this file, which needs torch alone. The trainer is rank 0 and broadcasts. A layer is two broadcasts: the
sizes of what follows, [2] int64, then bytes [total]: a table as JSON, and the tensors that it names. Two zeros are the end,
two -1 say that the trainer has given up. No wait is longer than its limit.
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
    """The process group of all ranks, each of which has called this. backend: "nccl" or "gloo". address: of this machine, at
    which gloo listens. device: of the tensors. seconds: that a broadcast may take. Raises RuntimeError.
    """
    if backend == "gloo":
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


def packed(layer):
    """A layer as bytes on its device, and their sizes: the table's, and all. layer: tensors by name."""
    table, at = [], 0
    for name, x in layer.items():
        table.append([name, str(x.dtype).removeprefix("torch."), list(x.shape), at])
        at += _aligned(x.numel() * x.element_size())
    words = json.dumps(table).encode()
    words += b" " * (_aligned(len(words)) - len(words))
    body = torch.empty(len(words) + at, dtype=torch.uint8, device=next(iter(layer.values())).device)
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


def received(group, device, seconds):
    """The names and tensors that rank 0 sends, layer by layer. device: where they are to lie. seconds: that a broadcast may
    take. Raises RuntimeError where it gives up.
    """
    sizes = torch.empty(2, dtype=torch.int64, device=device)
    while True:
        ended([begun(group, sizes)], seconds)
        head, total = told = tuple(sizes.tolist())
        if told == END:
            return
        if told == GIVEN_UP:
            raise RuntimeError("the trainer has given up in the middle of the weights")
        body = torch.empty(total, dtype=torch.uint8, device=device)  # a new one: vLLM keeps tensors until a layer is whole
        ended([begun(group, body)], seconds)
        yield from unpacked(body, head)
