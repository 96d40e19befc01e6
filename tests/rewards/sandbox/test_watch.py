"""A test is judged by CPU time and by doing nothing."""

import subprocess
import sys
import time

import pytest

from gspo.rewards.sandbox import watch
from tests.patience import PATIENCE


def started(code):
    return subprocess.Popen([sys.executable, "-S", "-c", code])


def test_a_process_is_waited_for_as_long_as_it_works(monkeypatch):
    status, seconds, why = watch.watched(started("raise SystemExit(7)").pid, 5.0)
    assert (status, why) == (7, b"") and seconds < 5
    status, seconds, why = watch.watched(started("while True: pass").pid, 0.3)
    assert (status, why) == (-9, b"timeout") and 0.3 < seconds < 3
    monkeypatch.setattr(watch, "PATIENCE", 0.3)  # above, a busy host that takes the processor away looks idle
    begin = time.monotonic()
    status, seconds, why = watch.watched(started("import time; time.sleep(60)").pid, 0.3)
    assert (status, why) == (-9, b"timeout") and seconds < 0.3 and time.monotonic() - begin < 30


def test_a_process_that_waits_for_a_processor_is_not_idle(monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", 0.1)
    monkeypatch.setattr(watch, "TICK", 0.05)
    monkeypatch.setattr(
        watch.TaskTimes, "now", lambda self: (0.01, time.monotonic() - begin)
    )  # it only ever waits in the queue
    begin = time.monotonic()
    assert watch.watched(started("import time; time.sleep(1)").pid, 0.1)[::2] == (0, b"")


def test_work_counts_what_a_process_ran():
    process = started("while True: pass")
    work = watch.TaskTimes(process.pid)
    try:
        deadline = time.monotonic() + PATIENCE
        while work.now()[0] < 0.2 and time.monotonic() < deadline:
            time.sleep(0.05)
        ran, waited = work.now()
        assert ran >= 0.2 and waited >= 0
    finally:
        process.kill()
        process.wait()
    assert work.now() == (0.0, -1.0)


LONG_THREAD = """
import threading, time
def burn():
    while time.thread_time() < 0.7: pass
thread = threading.Thread(target=burn)
thread.start()
thread.join()
time.sleep(0.6)
"""


def test_what_an_ended_thread_ran_was_no_idleness(monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", 0.3)
    status, seconds, why = watch.watched(started(LONG_THREAD).pid, 1.0)
    assert (status, why) == (0, b"") and seconds >= 0.7


SLEEPY_PARENT = """
import subprocess, sys, time
subprocess.run([sys.executable, "-S", "-c", sys.argv[1]])
print(flush=True)
time.sleep(60)
"""


def test_what_an_ended_child_ran_still_counts():
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    process = subprocess.Popen([sys.executable, "-S", "-c", SLEEPY_PARENT, burn], stdout=subprocess.PIPE)
    work = watch.TaskTimes(process.pid)
    try:
        while work.now()[0] < 0.3 and process.poll() is None:
            time.sleep(0.02)
        assert process.stdout.readline() == b"\n"
        ran, waited = work.now()
        assert ran >= 0.3 and waited >= 0
    finally:
        process.kill()
        process.communicate()


def test_errors_of_a_kind_are_passed_over():
    with watch.Suppressed(OSError, ValueError):
        raise FileNotFoundError
    with pytest.raises(TypeError), watch.Suppressed(OSError):
        raise TypeError
