"""A leader that hangs outside of passes is noticed, one that works for long is not, nor a rank that was stopped itself."""

import ctypes
import multiprocessing
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from gspo.assembly.heartbeat import heartbeat
from gspo.distributed.environment import LOST
from tests.launch.started import begin, finished, ranks_of, wait_for
from tests.launch.test_faults import SAMPLE, SUMS, nothing_left, same
from tests.patience import PATIENCE

LIMIT = 6.0  # seconds; a busy machine beats within them
LONGER = 1.25 * LIMIT  # as who hears nothing does not wait


@pytest.mark.slow
@pytest.mark.parametrize("where", [SAMPLE, SUMS])
def test_a_leader_that_hangs_while_the_others_wait_for_it_is_lost_after_the_time_limit(place, unbroken, where):
    name = f"hanging-leader-{where.rpartition(':')[2]}"
    fault = "wait", 0, where, 2
    process = begin(place, name, "--scale.ranks=2", "--train.steps=6", "--scale.timeout=10", faults=[fault])
    wait_for(lambda: (place / "reached").exists() or process.poll() is not None)
    leader = ranks_of(process)[0]
    os.kill(leader, signal.SIGSTOP)
    for left in ("reached", "listing"):
        (place / left).unlink()
    try:
        status, output = finished(process)
    finally:
        os.kill(leader, signal.SIGCONT) if Path(f"/proc/{leader}").exists() else None
    assert status == 0 and output.count("the leader has not been heard for 10 seconds") == 1, output
    assert output.count("rank 1 lost the others: the run goes on") == 1, output
    assert same(place, name, unbroken)
    nothing_left(place, name)


class Torn:
    """A store whose connections break at every other beat."""

    def __init__(self, store):
        self.store, self.left = store, 2

    def clone(self):
        return Torn(self.store.clone())

    def add(self, key, amount):
        self.left -= 1
        if not self.left:
            raise dist.DistNetworkError("Connection reset by peer")
        return self.store.add(key, amount)


def store_at(port, keeps):
    return dist.TCPStore("127.0.0.1", port, None, keeps, timedelta(seconds=PATIENCE), wait_for_workers=False)


def take_part(number, port, hosts, work, torn, begun):
    store = dist.PrefixStore("life 0", store_at(port, hosts and number == 0))
    with heartbeat(Torn(store) if torn else store, number, LIMIT, not hosts):
        begun.release()
        work()


def computes():
    while True:
        sum(range(1000))


def keeps_python_to_itself():
    """C code that does not let other threads run meanwhile."""
    ctypes.PyDLL(None).sleep(10_000)


def sleeps():
    time.sleep(10_000)


@pytest.fixture
def two():
    """Starts a leader that does this and a rank that listens, with a store that the leader hosts or this process."""
    started = []

    def start(work, hosts=False, torn=False):
        own = store_at(0, True)
        port, fork = own.port, multiprocessing.get_context("fork")
        begun = fork.Semaphore(0)
        if hosts:
            del own
        for number, does in enumerate((work, sleeps)):
            started.append(fork.Process(target=take_part, args=(number, port, hosts, does, torn, begun), daemon=True))
            started[-1].start()
        assert all(begun.acquire(timeout=PATIENCE) for _ in range(2))
        return (*started, None if hosts else own)

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.mark.parametrize("work, status", [(computes, None), (keeps_python_to_itself, LOST)])
def test_who_counts_as_hung(two, work, status):
    leader, listens, _store = two(work)
    listens.join(PATIENCE if status else LONGER)
    assert listens.exitcode == status
    assert leader.is_alive() or status is None


@pytest.mark.parametrize(("hosts", "torn"), [(False, False), (True, False), (False, True)])
def test_a_leader_that_is_stopped_is_given_up_and_one_whose_connections_break_only_then(two, hosts, torn):
    """Also where the leader hosts the store."""
    leader, listens, _store = two(sleeps, hosts, torn)
    listens.join(LONGER if torn else LIMIT / 4)
    assert listens.is_alive()
    os.kill(leader.pid, signal.SIGSTOP)
    listens.join(PATIENCE)
    assert listens.exitcode == LOST


def test_a_rank_that_was_stopped_itself_gives_nobody_up(two):
    leader, listens, _store = two(sleeps)
    time.sleep(LIMIT / 4)
    for pid in (leader.pid, listens.pid):  # as Ctrl-Z does
        os.kill(pid, signal.SIGSTOP)
    time.sleep(LONGER)
    os.kill(listens.pid, signal.SIGCONT)
    time.sleep(LIMIT / 8)
    os.kill(leader.pid, signal.SIGCONT)
    listens.join(LONGER)
    assert leader.is_alive() and listens.is_alive()


def test_without_the_store_nobody_is_given_up(two):
    """Whoever started the ranks is gone: the leader saves then, and ends the others."""
    leader, listens, store = two(sleeps)
    time.sleep(LIMIT / 4)
    del store
    listens.join(LONGER)
    assert leader.is_alive() and listens.is_alive()
