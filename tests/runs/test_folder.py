"""The run folder: never overwritten, held by one process."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import gspo
from gspo.config.schema import Config
from gspo.runs.folder import RunFolder, folder_of, placed
from gspo.runs.log import RunLog
from tests.patience import PATIENCE


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
from gspo.config.schema import Config
from gspo.runs.folder import RunFolder, folder_of, placed
from gspo.runs.log import RunLog
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


def test_a_run_that_ended_before_its_first_update_is_replaced(tmp_path):
    """A reward that raises in the first step must not cost the name of the folder."""
    run = tmp_path / "run"

    def begun(metrics):
        with RunFolder.create(run, "old") as folder:
            RunLog(folder).close()
        (run / "metrics.jsonl").write_text(metrics)
        (run / "report.html").touch()
        for left in ("tensorboard", "wandb"):
            (run / left).mkdir()
        for left in ("run_id", "vllm.log", "vllm_1.log"):
            (run / left).touch()

    begun('{"step": 0, "eval/accuracy": 0.1}\n{"step": 1, "updates": 0}\n')
    with RunFolder.create(run, "new"):
        assert (run / "config.toml").read_text() == "new"
        assert sorted(path.name for path in run.iterdir()) == [".lock", "checkpoints", "config.toml"]
    shutil.rmtree(run)
    for metrics, more in (
        ('{"step": 1, "updates": 1}\n', None),
        ('{"step": 2, "updates": 0}\n', None),
        ('{"st', None),
        ("", "notes.txt"),
        ("", "checkpoints/step_000001"),
    ):
        begun(metrics)
        if more:
            (run / more).touch()
        with pytest.raises(ValueError, match="is not empty; go on with that run"):
            RunFolder.create(run, "")
        assert (run / "config.toml").read_text() == "old"
        shutil.rmtree(run)


def test_without_locks_no_run_is_taken_for_one_that_has_ended(tmp_path, monkeypatch, caplog):
    """As Lustre without -o flock: the run in its first step may be alive."""

    def flock(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with RunFolder.create(tmp_path / "run", "old") as folder:
        RunLog(folder)
        with pytest.raises(ValueError, match="the folder exists and is not empty"):
            RunFolder.create(tmp_path / "run", "new")
        assert (tmp_path / "run" / "config.toml").read_text() == "old" and "has no locks" in caplog.text
    monkeypatch.chdir(tmp_path)
    with RunFolder.create("runs/run", ""):
        caplog.clear()
        assert folder_of("auto", False) == "runs/run-2" and not caplog.messages  # no word about another run's folder


def test_runs_that_begin_together_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = (
        "import time; from gspo.config.schema import Config; from gspo.runs.folder import placed; "
        "print(placed(Config(), False).log.dir, flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2)]
    assert sorted(other.stdout.readline().strip() for other in others) == ["runs/run", "runs/run-2"]
    assert folder_of("auto", False) == "runs/run-3"
    for other in others:
        other.communicate("\n")
    assert not Path("runs").exists() and folder_of("auto", False) == "runs/run"


def test_a_folder_that_nobody_named_and_that_cannot_be_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").touch()
    with pytest.raises(ValueError, match=r"log.dir = 'runs/run': cannot make the run folder, .*runs is a file"):
        placed(Config(), False)


def test_folders_that_nobody_named_are_numbered(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    assert folder_of("mine", False) == "mine"
    assert folder_of("auto", False) == folder_of("auto", True) == "runs/run"
    for number, dir in ((1, "runs/run"), (2, "runs/run-2"), (10, "runs/run-10")):
        RunFolder.create(dir, "").close()
        assert folder_of("auto", True) == dir and folder_of("auto", False) == f"runs/run-{number + 1}"
    for odd in ("runs/run-1", "runs/run-011", "runs/run-x", "runs/running", "runs/run-11"):
        RunFolder(odd).path.mkdir()
    assert folder_of("auto", True) == "runs/run-10" and folder_of("auto", False) == "runs/run-12"
    config = placed(Config(), False)
    assert config.log.dir == "runs/run-12" and placed(config, True) is config
    assert caplog.messages == ["log.dir is not set: the run folder is runs/run-12"]
