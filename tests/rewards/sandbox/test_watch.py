"""A test is judged by CPU time and by doing nothing."""

import subprocess
import sys
import time

import pytest

from gspo.rewards.sandbox import watch


def started(code):
    return subprocess.Popen([sys.executable, "-S", "-c", code])


@pytest.mark.timeout(60)
def test_a_process_is_waited_for_as_long_as_it_works(monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", 0.3)
    status, seconds, why = watch.watched(started("raise SystemExit(7)").pid, 5.0)
    assert (status, why) == (7, b"") and seconds < 5
    status, seconds, why = watch.watched(started("while True: pass").pid, 0.3)
    assert (status, why) == (-9, b"timeout") and 0.3 < seconds < 3
    begin = time.monotonic()
    status, seconds, why = watch.watched(started("import time; time.sleep(60)").pid, 0.3)
    assert (status, why) == (-9, b"timeout") and seconds < 0.3 and time.monotonic() - begin < 30


def test_a_process_that_waits_for_a_processor_is_not_idle(monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", 0.1)
    monkeypatch.setattr(watch, "TICK", 0.05)
    monkeypatch.setattr(watch, "work", lambda pid: (0.01, time.monotonic() - begin))  # it only ever waits in the queue
    begin = time.monotonic()
    assert watch.watched(started("import time; time.sleep(1)").pid, 0.1)[::2] == (0, b"")


def test_work_counts_what_a_process_ran():
    process = started("while True: pass")
    try:
        deadline = time.monotonic() + 30
        while watch.work(process.pid)[0] < 0.2 and time.monotonic() < deadline:
            time.sleep(0.05)
        ran, waited = watch.work(process.pid)
        assert ran >= 0.2 and waited >= 0
    finally:
        process.kill()
        process.wait()
    assert watch.work(process.pid) == (0.0, -1.0)


def test_errors_of_a_kind_are_passed_over():
    with watch.Suppressed(OSError, ValueError):
        raise FileNotFoundError
    with pytest.raises(TypeError), watch.Suppressed(OSError):
        raise TypeError
