"""A cell whose study is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.study.studies import BASE, write
from tests.study.test_cells import cells


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end on Linux alone")
@pytest.mark.timeout(200)
def test_cells_of_a_study_that_is_killed_save_and_end(place):
    study = write(place, BASE.replace("steps = 3", "steps = 4000").replace("[3, 4]", "[3]"))
    command = [sys.executable, "-m", "gspo.cli", "compare", str(study), "--dir", "out", "--only", "runs/GRPO"]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
    metrics = place / "out" / "cells" / "runs" / "GRPO" / "seed3" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert cells(place)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    while cells(place) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not cells(place)
    done = metrics.read_text().count("\n")
    assert 3 < done < 4000
    assert list((metrics.parent / "checkpoints").glob(f"step_{done:06d}"))  # it saved the step it was in
