"""The signals that ask a run to end."""

import os
import signal
import threading

import pytest

from gspo.runs.signals import interruptible, stop_signals


def test_a_closed_terminal_asks_once_and_nohup_is_kept():
    told = []
    with stop_signals(told.append) as stop:
        for _ in range(3):  # the kernel and the shell may each send one
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.asked and len(told) == 1 and told[0].startswith("SIGHUP: finishing this step, then saving")
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(told.append) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.asked
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number, way", [(signal.SIGINT, "Ctrl-C again"), (signal.SIGTERM, "Ctrl-C")])
def test_the_first_signal_asks_and_ctrl_c_after_it_interrupts(number, way):
    told, before = [], signal.getsignal(number)
    with stop_signals(told.append) as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        try:
            for _ in range(2):  # a scheduler may send one to all processes, and the launcher forwards its own
                os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            pytest.fail("a second SIGTERM interrupted the step")
        told_of = f"{signal.Signals(number).name}: finishing this step, then saving; {way} stops at once"
        assert stop.asked and told == [told_of]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(number) is before


def test_other_threads_leave_signals_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        with stop_signals(found.append) as stop:
            found.append((stop.asked, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, before)]


def test_a_command_is_interrupted_by_what_would_end_it():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
