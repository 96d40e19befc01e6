"""Sends weights from a trainer to the workers of a vLLM engine through a torch process group.

Both sides load this file, which needs only torch. The trainer is rank 0 and broadcasts. A layer is two broadcasts: the sizes
of what follows, [2] int64, then the payload, bytes [total]: a JSON table, and the tensors that it names. Sizes of (0, 0)
mark the end, (-1, -1) mean that the trainer has given up. Every wait has a timeout.
"""

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

ALIGNED = 16  # alignment of each tensor, in bytes
END, GIVEN_UP = (0, 0), (-1, -1)
PAUSE = 5e-4  # poll interval of a broadcast, in seconds
NCCL_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_setting = threading.Lock()  # engines are joined concurrently, each in a thread


def facing(host: str, port: int) -> str:
    """The local address that `host`, another machine or this one, can reach. Raises OSError."""
    kind, *_, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(kind, socket.SOCK_DGRAM) as way:
        way.connect(there)  # nothing is sent
        return str(way.getsockname()[0])


def hosted(address: str, size: int, seconds: float) -> tuple[dist.TCPStore, int]:
    """A rendezvous store for `size` ranks that listens at this address only, and its port."""
    listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    port = listener.getsockname()[1]
    limit = timedelta(seconds=seconds)
    store = dist.TCPStore(
        address, port, size, True, wait_for_workers=False, timeout=limit, master_listen_fd=listener.detach()
    )  # fmt: skip
    return store, port


def store_at(address: str, port: int, size: int, seconds: float) -> dist.TCPStore:
    """A client of the store that another process hosts."""
    return dist.TCPStore(address, port, size, False, wait_for_workers=False, timeout=timedelta(seconds=seconds))


def join(
    store: dist.TCPStore, rank: int, size: int, backend: str, address: str, device: torch.device, seconds: float
) -> Any:
    """Creates the process group, in each rank. Raises RuntimeError. backend: "nccl" or "gloo". address: the local one that
    gloo listens at. seconds: timeout of a broadcast.
    """
    if backend != "nccl":
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=seconds)
        group = gloo(store, rank, size, options)
    else:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(days=1)  # `ended` has the real timeout: NCCL's own would kill this process
        with _report_errors():
            group = dist.ProcessGroupNCCL(store, rank, size, options)
    ended([begun(group, torch.zeros(1, dtype=torch.uint8, device=device))], seconds)  # NCCL connects on first use
    return group


@contextmanager
def _report_errors() -> Iterator[None]:
    """Meanwhile, a new NCCL group does not kill this process when a peer is gone."""
    with _setting:
        before = os.environ.get(NCCL_ERRORS)
        os.environ[NCCL_ERRORS] = "0"
        try:
            yield
        finally:
            os.environ.pop(NCCL_ERRORS, None)
            if before is not None:
                os.environ[NCCL_ERRORS] = before


def begun(group: Any, tensor: torch.Tensor) -> Any:
    """Starts a broadcast of rank 0's tensor and returns its work handle."""
    options = dist.BroadcastOptions()
    options.rootRank = 0
    return group.broadcast([tensor], options)


def ended(works: Iterable[Any], seconds: float, check: Callable[[], Any] = lambda: None) -> None:
    """Waits at most `seconds` in all for broadcasts. Raises RuntimeError if one fails or is late, and what `check`, called
    meanwhile, raises.
    """
    until = time.monotonic() + seconds
    for work in works:
        while not work.is_completed():
            check()
            if time.monotonic() > until:
                raise RuntimeError("a broadcast of weights was not done in time")
            time.sleep(PAUSE)
        # Raises the error, if any. NCCL's does so only with a timeout, says its source: it has not run with NCCL.
        work.wait(timedelta(seconds=1))


def packed(layer: Mapping[str, torch.Tensor]) -> tuple[tuple[int, int], torch.Tensor]:
    """Serializes a layer. Returns two sizes in bytes (table, total), and the payload."""
    table: list[list[Any]] = []
    at = 0
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


def _aligned(size: int) -> int:
    return math.ceil(size / ALIGNED) * ALIGNED


def unpacked(body: torch.Tensor, head: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The names and tensors of a layer, as views of its payload. head: size of the table in bytes."""
    for name, dtype, shape, begin in json.loads(body[:head].cpu().numpy().tobytes()):
        kind = getattr(torch, dtype)
        size = math.prod(shape) * kind.itemsize
        yield name, body[head + begin :][:size].view(kind).view(shape)


def received(group: Any, device: torch.device, seconds: float) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the names and tensors that rank 0 sends to this device, layer by layer. Raises RuntimeError if a broadcast
    fails or takes more seconds, or the trainer gives up.
    """
    sizes = torch.empty(2, dtype=torch.int64, device=device)
    while True:
        ended([begun(group, sizes)], seconds)
        head, total = header = tuple(sizes.tolist())
        if header == GIVEN_UP:
            raise RuntimeError("the trainer stopped in the middle of a weight transfer")
        if header == END:
            return
        body = torch.empty(total, dtype=torch.uint8, device=device)  # a new one: vLLM keeps tensors until a layer is whole
        ended([begun(group, body)], seconds)
        yield from unpacked(body, head)
