"""What tests of runs wait for, and what they say where it does not come."""

import subprocess
import sys

import pytest

from tests.launch.started import left, wait_for

STUCK = """
import subprocess, sys
from pathlib import Path
print("before it got stuck", flush=True)
beside = subprocess.Popen(["sleep", "1000"], start_new_session=True)
Path(sys.argv[1]).touch()
beside.wait()
"""


@pytest.mark.parametrize("own", [False, True])
def test_a_process_that_hangs_is_stopped_with_what_it_has_started_and_its_output_is_shown(tmp_path, own, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words = [sys.executable, "-c", STUCK, str(tmp_path / "begun")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=own)
    wait_for((tmp_path / "begun").exists, process=process)
    with pytest.raises(AssertionError, match="nothing happened: before it got stuck"):
        wait_for(lambda: False, 0.1, process)
    assert process.returncode == -9
    wait_for(lambda: not left("TMPDIR", str(tmp_path)))
