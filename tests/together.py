"""A function on several ranks: processes of this machine that find one another, with a time limit."""

import multiprocessing
import os
import pickle
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gspo.backends.vllm.plugin.gspo_transfer import hosted
from gspo.config.scale import ScaleConfig
from tests.patience import PATIENCE


def _rank(work, number, size, port, arguments, answers, waits):
    os.environ |= {
        "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    torch.set_num_threads(1)
    from gspo.assembly.rank import connected

    try:
        with connected(ScaleConfig(timeout=waits)) as ranks:
            answers.put((number, pickle.dumps(work(ranks, *arguments)), None))
    except BaseException:
        answers.put((number, None, traceback.format_exc()))
        raise


def together(work, size, *arguments, seconds=PATIENCE, waits=PATIENCE):
    """What `work(ranks, *arguments)` returns on each of `size` ranks, by number. It must be a function of a module. waits:
    seconds that they wait for one another. Raises AssertionError with the first error of a rank, where one ends without
    an answer, or where they take more than `seconds`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.together", "tests.warm"])
    _store, port = hosted("127.0.0.1", size, seconds)
    answers = context.Queue()
    started = [
        context.Process(target=_rank, args=(work, number, size, port, arguments, answers, waits), daemon=True)
        for number in range(size)
    ]
    for process in started:
        process.start()
    try:
        got, end = {}, time.monotonic() + seconds
        while len(got) < size:
            assert time.monotonic() < end, f"{size} ranks took more than {seconds} s; done are {sorted(got)}"
            # Asked before the queue is: what a rank had put there is there once it has ended.
            statuses = {n: process.exitcode for n, process in enumerate(started) if n not in got and process.exitcode}
            if answers.empty():
                assert not statuses, f"ranks that ended without an answer, and their exit statuses: {statuses}"
                time.sleep(0.01)
                continue
            number, answer, error = answers.get()
            assert error is None, f"rank {number}: {error}"
            got[number] = pickle.loads(answer)
        return [got[number] for number in range(size)]
    finally:
        for process in started:
            process.join(5)
            process.kill()
            process.join()


@contextmanager
def sent():
    """Bytes that leave this rank meanwhile beside the model's own: "objects" (pickled, to all) and "tensors" (to one)."""
    count, others = Counter(), dist.get_world_size() - 1
    plain = {name: getattr(distributed_c10d, name) for name in ("all_gather", "broadcast", "send")}

    def size(x):
        return x.numel() * x.element_size()

    def all_gather(every, mine, *more, **options):
        count["objects"] += size(mine) * others
        return plain["all_gather"](every, mine, *more, **options)

    def broadcast(x, *more, **options):
        count["objects"] += size(x) * others * (dist.get_rank() == 0)
        return plain["broadcast"](x, *more, **options)

    def send(x, *more, **options):
        count["tensors"] += size(x)
        return plain["send"](x, *more, **options)

    with (
        mock.patch.object(distributed_c10d, "all_gather", all_gather),
        mock.patch.object(distributed_c10d, "broadcast", broadcast),
        mock.patch.object(dist, "send", send),
    ):
        yield count
