"""Coroutines beside the main thread: what they raise, what ends them, and what cannot hold up the end."""

import asyncio
import sys
import threading

import pytest

from gspo.agents import loop_thread
from gspo.agents.loop_thread import LoopThread
from tests.patience import PATIENCE


@pytest.fixture(autouse=True)
def in_time(monkeypatch):
    """What ends has all the time that a busy machine needs."""
    monkeypatch.setattr(loop_thread, "END", PATIENCE)


@pytest.fixture
def thread():
    made = LoopThread()
    yield made
    made.close()
    assert not made._thread.is_alive()


async def forever(begun, ended):
    begun.set()
    try:
        await asyncio.sleep(1e6)
    finally:
        ended.append(1)


def test_it_goes_on_while_others_work_and_gives_or_raises(thread):
    async def named():
        await asyncio.sleep(0)
        return threading.current_thread()

    assert thread.begin(named()).result(PATIENCE) is thread._thread is thread.run(named()) is not threading.current_thread()

    async def fails():
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        thread.run(fails())


def test_what_leaves_ends_alone(thread):
    """In a task of its own too, which nobody need await."""

    async def leave():
        sys.exit(3)

    async def parent(awaits):
        task = asyncio.ensure_future(leave())
        await (task if awaits else asyncio.sleep(0.01))
        return "stayed" if task.done() else "never left"

    with pytest.raises(SystemExit, match="3"):
        thread.run(leave())
    beside = thread.begin(parent(False))
    with pytest.raises(SystemExit, match="3"):
        thread.run(parent(True))
    assert beside.result(PATIENCE) == "stayed"


def test_to_cancel_the_future_is_to_cancel_the_work(thread):
    begun, ended = threading.Event(), []
    future = thread.begin(forever(begun, ended))
    assert begun.wait(PATIENCE) and future.cancel()
    thread.give_up()
    assert ended == [1]


def test_the_end_waits_for_what_is_given_up():
    thread, begun, ended = LoopThread(), threading.Event(), []
    futures = [thread.begin(forever(begun, ended)) for _ in range(3)]
    assert begun.wait(PATIENCE)
    thread.close()
    assert ended == [1, 1, 1] and all(future.cancelled() for future in futures) and thread._loop.is_closed()


def test_what_blocks_the_loop_does_not_hold_up_the_end(monkeypatch):
    monkeypatch.setattr(loop_thread, "END", 0.1)
    thread, begun, free = LoopThread(), threading.Event(), threading.Event()

    async def blocks():
        begun.set()
        free.wait(PATIENCE)

    thread.begin(blocks())
    assert begun.wait(PATIENCE)
    thread.close()
    assert thread._thread.is_alive()
    free.set()
    thread._thread.join(PATIENCE)
    assert not thread._thread.is_alive()
