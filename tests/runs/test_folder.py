"""The run folder: never overwritten, held by one process."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

import gspo
from gspo.runs.folder import RunFolder
from tests.patience import PATIENCE


def test_a_used_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty; go on with that run by --resume .*, or give another log.dir"):
        RunFolder.create(tmp_path, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.txt"]


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        RunFolder.create(tmp_path / "run", "")
    with pytest.raises(ValueError, match="cannot make the run folder"):
        RunFolder.create(tmp_path / "run" / "below", "")


def test_what_a_kill_in_create_leaves_can_be_created_again(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".config.toml.part").write_text("[mod")
    RunFolder.create(tmp_path, "whole").close()
    assert (tmp_path / "config.toml").read_text() == "whole"


def test_resume_needs_a_run_folder(tmp_path):
    with pytest.raises(ValueError, match="no such run folder to resume"):
        RunFolder.resume(tmp_path / "none")
    with pytest.raises(ValueError, match=r"config\.toml is missing"):
        RunFolder.resume(tmp_path)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(ValueError, match="checkpoints is missing"):
        RunFolder.resume(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.toml"]


def test_a_run_may_lie_behind_a_link_and_has_one_writer(tmp_path):
    (tmp_path / "run").symlink_to("disk")
    with pytest.raises(ValueError, match=r"log\.dir = '.*run': cannot make the run folder"):
        RunFolder.create(tmp_path / "run", "")
    (tmp_path / "disk").mkdir()
    with RunFolder.create(tmp_path / "run", ""), pytest.raises(RuntimeError, match="another process is writing"):
        RunFolder.resume(tmp_path / "run")
    RunFolder.resume(tmp_path / "run").close()
    assert (tmp_path / "disk" / "config.toml").exists()


READ_ONLY = """
import os, sys
from gspo.runs.folder import RunFolder
os.setgid(65534), os.setuid(65534)
for open_it in (RunFolder.resume, lambda path: RunFolder.create(path + "/new", "")):
    try:
        open_it(sys.argv[1])
    except ValueError as error:
        print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_folder_of_somebody_else_is_refused_in_one_line():
    code = "import sys; sys.path.insert(0, sys.argv.pop()); exec(sys.argv.pop())"
    source = os.path.dirname(os.path.dirname(gspo.__file__))
    with tempfile.TemporaryDirectory() as place:  # tmp_path lies where nobody else may look
        os.chmod(place, 0o755)
        RunFolder.create(f"{place}/run", "").close()
        command = [sys.executable, "-c", code, f"{place}/run", READ_ONLY, source]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    resumed, created = ended.stdout.splitlines()
    assert "cannot be written to" in resumed and "Permission denied" in resumed, ended.stderr
    assert "may not be written to; give another log.dir" in created


def test_kill_9_frees_the_folder_though_a_child_lives_on(tmp_path):
    code = (
        "import os, sys, time\n"
        "from gspo.runs.log import RunFolder\n"
        "folder = RunFolder.create(sys.argv[1], '')\n"
        "if not os.fork(): print(os.getpid(), flush=True)\n"  # the child, once it has let go of the lock
        "time.sleep(10_000)\n"
    )
    run = tmp_path / "run"
    parent = subprocess.Popen([sys.executable, "-c", code, run], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(RuntimeError, match="another process"):
            RunFolder.resume(run)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        os.kill(child, 0)  # it lives
        RunFolder.resume(run).close()
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
