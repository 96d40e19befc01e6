"""A process that does what it is asked, for the tests of processes, and what becomes of it."""

import os
import time

import pytest

from gspo.workers.processes import Process
from tests.patience import PATIENCE

linux = pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")

SCRIPT = """
import os, pickle, signal, struct, subprocess, sys, time
from gspo.workers.json_codec import packed
from gspo.workers.processes import opened

connection = opened(sys.argv[1])
say = lambda value: connection.send_bytes(packed(value))
wish = pickle.loads(connection.recv_bytes())
if wish == "talk":
    print("chatter")
    say([sys.stdin.read(), os.environ["PYTHONHASHSEED"], os.environ["OMP_NUM_THREADS"]])
if wish == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
    say("still here")
if wish == "child":
    say(subprocess.Popen(["sleep", "1000"]).pid)
    time.sleep(1000)
if wish == "environment":
    say([dict(os.environ), sys.path])
if wish == "status":
    os._exit(7)
if wish == "signal":
    os.kill(os.getpid(), signal.SIGSEGV)
if wish == "kill the supervisor":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)
if wish == "half a message":
    os.write(connection.fileno(), struct.pack("!i", 10) + b"half")
    time.sleep(1000)
if wish == "too long a message":
    os.write(connection.fileno(), struct.pack("!i", 1 << 30))
if wish == "a pickle":
    connection.send_bytes(pickle.dumps(print))
if wish == "read nothing":
    say("begun")
    time.sleep(1000)
if wish.startswith("leave"):
    # Children that live on by themselves: one with the socket, one of another session, one whose parent has ended.
    copy = subprocess.Popen(["sleep", "1000"], close_fds=False, pass_fds=[connection.fileno()])
    session = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    orphan = subprocess.run(["sh", "-c", "setsid sleep 1000 > /dev/null & echo $!"], stdout=subprocess.PIPE, text=True)
    say([copy.pid, session.pid, int(orphan.stdout)])
    if wish == "leave and hang":
        sum(range(10**13))  # holds the interpreter's lock
    if wish == "leave and crash":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    (tmp_path / "wishes_of_processes.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    begun = []

    def start(wish):
        begun.append(Process("wishes_of_processes", wish))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()


def alive(pid):
    """Whether a process runs: it is there, and not only waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second where it is reaped between opening and reading
        return False


def all_end(numbers):
    deadline = time.monotonic() + PATIENCE  # the kernel ends a process at its next turn, not within the call
    while any(map(alive, numbers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(alive, numbers))
