"""Nothing that a worker started outlives it, or whoever started it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gspo.workers import supervisor
from gspo.workers.processes import Lost
from tests.data.wishes import alive, all_end, linux, started
from tests.patience import PATIENCE

__all__ = ["started"]


@linux
@pytest.mark.parametrize("wish", ["leave and return", "leave and hang", "leave and crash"])
@pytest.mark.parametrize("end", ["kill", "hang up", "nothing"])
def test_nothing_that_it_started_outlives_it(started, wish, end):
    process = started(wish)
    numbers = process.receive(PATIENCE)
    assert len(numbers) == 3
    if end == "kill":
        process.kill()
        process.kill()  # a second time does nothing
    elif end == "hang up":  # as when this process is killed
        process.connection.close()
    elif wish == "leave and hang":
        assert all(map(alive, numbers))
        return
    assert all_end(numbers)
    process.popen.wait(PATIENCE)
    if wish == "leave and hang":
        assert process.popen.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("wish", "status"), [("talk", 0), ("status", 7), ("signal", -signal.SIGSEGV)])
def test_it_ends_as_its_work_did(started, wish, status):
    assert started(wish).popen.wait(PATIENCE) == status


@linux
def test_it_dies_with_its_supervisor(started):
    process = started("kill the supervisor")
    with pytest.raises(Lost, match="SIGKILL"):
        process.receive(PATIENCE)


@linux
def test_only_its_work_may_be_taken_when_memory_is_short(started):
    process = started("child")
    process.receive(PATIENCE)
    supervisor_score = Path(f"/proc/{process.popen.pid}/oom_score_adj").read_text()
    (worker,) = supervisor._children(process.popen.pid)
    assert int(supervisor_score) < int(Path(f"/proc/{worker}/oom_score_adj").read_text()) == 500


def test_a_command_that_is_run_aside_hears_sigterm_and_ends_as_it_would(tmp_path):
    begun = tmp_path / "begun"
    for command, number, status in (
        ("exit 7", None, 7),
        (f"touch {begun}; exec sleep 1000", signal.SIGTERM, -signal.SIGTERM),
    ):
        process = subprocess.Popen([sys.executable, supervisor.__file__, "sh", "-c", command])
        while number and not begun.exists():
            assert process.poll() is None
        if number:
            process.send_signal(number)
        assert process.wait(PATIENCE) == status
