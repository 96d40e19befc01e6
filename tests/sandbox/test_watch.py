"""A test is judged by CPU time and by doing nothing."""

import os
import subprocess
import sys
import time

import pytest

from gspo.sandbox import watch
from tests.patience import PATIENCE


def started(code):
    return subprocess.Popen([sys.executable, "-S", "-c", code])


@pytest.fixture(autouse=True)
def no_wall(monkeypatch):
    """What is ended is ended by its work, or by doing nothing."""
    monkeypatch.setattr(watch, "BACKSTOP", 1e6)


def test_a_process_is_waited_for_as_long_as_it_works(monkeypatch):
    status, seconds, why = watch.watch(started("raise SystemExit(7)").pid, PATIENCE)
    assert (status, why) == (7, b"") and seconds < 5
    status, seconds, why = watch.watch(started("while True: pass").pid, 0.3)
    assert (status, why) == (-9, b"timeout") and seconds > 0.3
    monkeypatch.setattr(watch, "PATIENCE", 0.3)  # above, a busy host that takes the processor away looks idle
    status, seconds, why = watch.watch(started("import time; time.sleep(10_000)").pid, 0.3)
    assert (status, why) == (-9, b"timeout") and seconds < 0.3


def test_a_process_that_waits_for_a_processor_is_not_idle(monkeypatch):
    monkeypatch.setattr(watch, "PATIENCE", 0.1)
    monkeypatch.setattr(watch, "TICK", 0.05)
    begin = time.monotonic()
    monkeypatch.setattr(watch.TaskTimes, "now", lambda self: (0.01, time.monotonic() - begin))  # it only waits in the queue
    assert watch.watch(started("import time; time.sleep(1)").pid, 0.1)[::2] == (0, b"")


BURN = "import os\nwhile not os.path.exists({!r}): pass"
THREAD = """
import sys, threading, time
thread = threading.Thread(target=exec, args=(sys.argv[1],))
thread.start()
thread.join()
print(flush=True)
time.sleep(10_000)
"""
CHILD = """
import subprocess, sys, time
subprocess.run([sys.executable, "-S", "-c", sys.argv[1]])
print(flush=True)
time.sleep(10_000)
"""


@pytest.mark.parametrize("code", [THREAD, CHILD], ids=["thread", "child"])
def test_what_an_ended_thread_or_child_ran_still_counts(tmp_path, code):
    """It was no idleness."""
    burn = BURN.format(str(tmp_path / "enough"))
    process = subprocess.Popen([sys.executable, "-S", "-c", code, burn], stdout=subprocess.PIPE)
    work = watch.TaskTimes(process.pid)
    try:
        while work.now()[0] < 0.3 and process.poll() is None:
            time.sleep(0.02)
        (tmp_path / "enough").touch()
        assert process.stdout.readline() == b"\n"
        ran, waited = work.now()
        assert ran >= 0.3 and waited >= 0
    finally:
        process.kill()
        process.communicate()
    assert work.now() == (0.0, -1.0)


def test_a_thread_that_ends_while_it_is_read_hides_no_other(monkeypatch):
    work, listed = watch.TaskTimes(os.getpid()), os.listdir
    monkeypatch.setattr(watch.os, "listdir", lambda path: ["999999999", *listed(path)])
    ran, waited = work.now()
    assert ran > 0 and waited >= 0
