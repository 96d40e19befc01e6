"""Calls in threads of their own."""

import threading
from functools import partial

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
