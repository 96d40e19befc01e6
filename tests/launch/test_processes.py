"""Processes of ranks that are no run: what they get, and that none is left."""

import json
import logging
import os
import re
import sys
import time

import pytest

from gspo.distributed.environment import PARENT
from gspo.launch.processes import here, importing, of_rank, timed


def test_ranks_of_this_machine_know_their_numbers_and_are_killed_in_the_end(tmp_path):
    script = "import json, time; open(os.environ['RANK'], 'w').write(json.dumps(dict(os.environ))); time.sleep(10_000)"
    command = [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {script}"]
    with pytest.raises(OSError, match="on purpose"), here(command, 2, os.environ | {"WORLD_SIZE": "2"}) as started:
        while any(not (tmp_path / name).exists() or not (tmp_path / name).read_text() for name in "01"):
            time.sleep(0.05)
        assert [process.poll() for process in started] == [None, None]
        raise OSError("on purpose")
    for number in range(2):
        found = json.loads((tmp_path / str(number)).read_text())
        assert (found["RANK"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"]) == (str(number), str(number), "2")
        assert found[PARENT] == str(os.getpid()) and found["WORLD_SIZE"] == "2"
    assert [process.poll() for process in started] == [-9, -9]


def test_the_leading_rank_says_what_it_loads(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    with timed("the model m"), importing():  # torch is there already
        assert caplog.messages == ["loading the model m"]
    assert re.fullmatch(r"loaded the model m in \d+\.\d s", caplog.messages[1]) and len(caplog.messages) == 2
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with timed("the model m"):
        pass
    assert len(caplog.messages) == 2


def test_ranks_share_the_cores_of_their_machine_unless_told_otherwise():
    assert of_rank({}, 5, 2, 1)["OMP_NUM_THREADS"] == str(max(1, os.cpu_count() // 2))
    assert of_rank({"OMP_NUM_THREADS": "7"}, 5, 2, 1)["OMP_NUM_THREADS"] == "7"
    assert [of_rank({}, 5, 2, 1)[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == ["5", "1", "2"]
