"""Nothing that a worker started outlives it, or whoever started it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gspo.workers import supervisor
from gspo.workers.processes import GONE, kill
from tests.data.wishes import alive, all_end, heard, linux, started
from tests.patience import PATIENCE
from tests.rewards.tools import children

__all__ = ["started"]


@linux
def test_its_children_end_with_it(started):
    process, connection = started("child")
    child = heard(connection)
    assert alive(child)
    kill(process)
    assert process.returncode == -signal.SIGKILL
    assert all_end([child])
    kill(process)  # a second time does nothing


@linux
@pytest.mark.parametrize("wish", ["leave and return", "leave and hang", "leave and crash"])
@pytest.mark.parametrize("end", ["kill", "hang up", "nothing"])
def test_nothing_that_it_started_outlives_it(started, wish, end):
    process, connection = started(wish)
    numbers = heard(connection)
    assert len(numbers) == 3
    if end == "kill":
        kill(process)
    elif end == "hang up":  # as when this process is killed
        connection.close()
    elif wish == "leave and hang":
        assert all(map(alive, numbers))
        return
    assert all_end(numbers)
    process.wait(PATIENCE)


@pytest.mark.parametrize(("wish", "status"), [("talk", 0), ("status", 7), ("signal", -signal.SIGSEGV)])
def test_it_ends_as_its_work_did(started, wish, status):
    assert started(wish)[0].wait(PATIENCE) == status


@linux
def test_it_dies_with_its_keeper(started):
    process, connection = started("kill the keeper")
    with pytest.raises(GONE):
        heard(connection)
    assert process.wait(PATIENCE) == -signal.SIGKILL


@linux
def test_only_its_work_may_be_taken_when_memory_is_short(started):
    process, connection = started("child")
    heard(connection)
    keeper = Path(f"/proc/{process.pid}/oom_score_adj").read_text()
    (worker,) = children(process.pid)
    assert int(keeper) < int(Path(f"/proc/{worker}/oom_score_adj").read_text()) == 500


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
