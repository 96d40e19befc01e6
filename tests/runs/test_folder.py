"""The run folder: never overwritten, held by one process."""

import os
import signal
import subprocess
import sys

import pytest

from gspo.runs.folder import RunFolder


def test_create_makes_a_whole_folder(tmp_path):
    with RunFolder.create(tmp_path / "a" / "run", "[train]\nsteps = 1\n") as folder:
        assert folder.config.read_text() == "[train]\nsteps = 1\n"
        assert folder.checkpoints.is_dir() and folder.figures.is_dir()


def test_an_empty_folder_may_be_used(tmp_path):
    RunFolder.create(tmp_path, "").close()


def test_a_used_folder_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty; go on with that run by --resume, or give another --log.dir"):
        RunFolder.create(tmp_path, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.txt"]


def test_a_run_is_never_overwritten(tmp_path):
    RunFolder.create(tmp_path / "run", "first").close()
    with pytest.raises(ValueError, match="not empty"):
        RunFolder.create(tmp_path / "run", "second")
    assert (tmp_path / "run" / "config.toml").read_text() == "first"


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        RunFolder.create(tmp_path / "run", "")
    with pytest.raises(ValueError, match="cannot make the run folder"):
        RunFolder.create(tmp_path / "run" / "below", "")


def test_what_a_kill_in_create_leaves_can_be_created_again(tmp_path):
    for name in ("checkpoints", "figures"):
        (tmp_path / name).mkdir()
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


def test_two_writers_are_refused(tmp_path):
    with (
        RunFolder.create(tmp_path / "run", ""),
        pytest.raises(RuntimeError, match="another process is writing"),
    ):
        RunFolder.resume(tmp_path / "run")
    RunFolder.resume(tmp_path / "run").close()


def test_kill_9_frees_the_folder_though_a_child_lives_on(tmp_path):
    code = (
        "import os, sys, time\n"
        "from gspo.runs.log import RunFolder\n"
        "folder = RunFolder.create(sys.argv[1], '')\n"
        "if not os.fork(): print(os.getpid(), flush=True)\n"  # the child, once it has let go of the lock
        "time.sleep(60)\n"
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
