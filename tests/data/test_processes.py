"""Real processes of ours: how they are asked, what they may do, and how they end."""

import os
import signal
import time

import pytest

from gspo.data.processes import GONE, kill, spawn

SCRIPT = """
import os, signal, subprocess, sys, time
from gspo.data.processes import opened

connection = opened(sys.argv[1])
wish = connection.recv()
if wish == "talk":
    print("chatter")
    connection.send((sys.stdin.read(), os.environ["PYTHONHASHSEED"], os.environ["OMP_NUM_THREADS"]))
if wish == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
    connection.send("still here")
if wish == "child":
    connection.send(subprocess.Popen(["sleep", "1000"]).pid)
    time.sleep(1000)
if wish == "child without the socket":
    child = subprocess.Popen(["sleep", "1000"], close_fds=False)
    connection.send(child.pid)
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    (tmp_path / "wishes_of_processes.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    begun = []

    def start(wish):
        begun.append(spawn("wishes_of_processes", wish))
        return begun[-1]

    yield start
    for process, _ in begun:
        kill(process)


def alive(pid):
    """Whether a process runs: it is there, and not only waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_has_its_request_and_its_chatter_goes_elsewhere(started, capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    process, connection = started("talk")
    assert connection.recv() == ("", "0", "3")  # nothing to read, one hash seed, the threads that were asked for
    assert process.wait() == 0
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "chatter\n")
    with pytest.raises(GONE):
        connection.recv()


def test_ctrl_c_is_not_for_it(started):
    _, connection = started("interrupt")
    assert connection.recv() == "still here"


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
def test_its_children_end_with_it(started):
    process, connection = started("child")
    child = connection.recv()
    assert alive(child)
    kill(process)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10  # the kernel ends it at its next turn, not within the call
    while alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(child)
    kill(process)  # a second time does nothing


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
def test_a_child_does_not_hold_the_socket_open(started):
    process, connection = started("child without the socket")
    child = connection.recv()
    assert process.wait() == 0 and alive(child)
    with pytest.raises(GONE):
        connection.recv()
