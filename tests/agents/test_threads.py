"""Calls in threads of their own."""

import threading
from functools import partial

import pytest

from gspo.agents.threads import begin
from tests.patience import PATIENCE


def test_whoever_waits_gets_the_result_or_the_error():
    def fail(error):
        raise error

    assert begin(lambda: 3).result(PATIENCE) == 3
    for error in (KeyError("mine"), SystemExit("mine"), StopIteration("mine")):
        assert begin(partial(fail, error)).exception(PATIENCE) is error


def test_who_stops_waiting_does_not_stop_the_call(capfd):
    go = threading.Event()

    def wait():
        go.wait(PATIENCE)
        return threading.current_thread()

    call = begin(wait)
    assert not call.cancel()
    go.set()
    call.result(PATIENCE).join(PATIENCE)
    assert not capfd.readouterr().err  # no thread complains


def test_a_thread_that_cannot_be_started():
    before = threading.stack_size(1 << 47)  # more than there is
    try:
        with pytest.raises(RuntimeError, match=r"can't start new thread beside .*end what hangs"):
            begin(lambda: 3)
    finally:
        threading.stack_size(before)
