import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gspo.backends.vllm.exchange_folder import LOCK, MEMORY, exchange, owner, place_of, sweep
from gspo.config.rollout import SamplerConfig

DIES = """
import os, signal
from pathlib import Path
from gspo.backends.vllm.exchange_folder import exchange
from gspo.config.rollout import SamplerConfig
with exchange(SamplerConfig(weight_dir={place!r}), Path({run!r})) as folder:
    (folder / "next").mkdir()
    (folder / "next" / "model.safetensors").write_bytes(b"half of it")
    for log in (Path({tmp!r}) / f"{{folder.name}}-vllm-0.log", Path({place!r}) / f"{{folder.name}}-vllm-1.log"):
        log.write_text("vLLM starts")
    child = os.fork() if {forks} else 0
    if {forks} and not child:
        os.closerange(0, 3)
        signal.pause()
    print(folder, child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(place, run, forks=False):
    """The folder that a process has left which was killed in it. forks: also its child, which lives on."""
    script = DIES.format(place=str(place), run=str(run), tmp=tempfile.gettempdir(), forks=forks)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder, child = done.stdout.split()
    return (Path(folder), int(child)) if forks else Path(folder)


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "place").mkdir()
    return SamplerConfig(weight_dir=str(tmp_path / "place"))


def test_what_a_killed_run_has_left_is_deleted_when_another_begins(tmp_path, given):
    left = killed(given.weight_dir, tmp_path / "run")
    assert (left / "next" / "model.safetensors").exists() and len(os.listdir(tmp_path / "tmp")) == 1
    with exchange(given, tmp_path / "other") as folder:
        assert os.listdir(given.weight_dir) == [folder.name] and not os.listdir(tmp_path / "tmp")
        sweep(given, tmp_path / "other")
        assert folder.exists()  # its lock is held
    assert not os.listdir(given.weight_dir) and not os.listdir(tmp_path / "tmp")


def test_a_child_that_a_killed_run_has_forked_keeps_nothing(tmp_path, given):
    left, child = killed(given.weight_dir, tmp_path / "run", forks=True)
    try:
        sweep(given, tmp_path / "other")
        assert not left.exists()
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    "machine, run, goes",
    [("another", "run", True), ("another", "other", False), (None, "other", True), ("another", "", False)],
)
def test_what_another_machine_may_still_use_stays(tmp_path, given, machine, run, goes):
    """Not every file system tells of locks that other machines hold."""
    left = killed(given.weight_dir, tmp_path / run)
    whose = owner(tmp_path / run if run else None) | ({"machine": machine} if machine else {})
    (left / LOCK).write_text(json.dumps(whose))
    sweep(given, tmp_path / "run" if run else None)
    assert left.exists() != goes


def test_in_memory_the_lock_decides_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("gspo.backends.vllm.exchange_folder.MEMORY", tmp_path)
    for name in ("gspo-dead", "gspo-alive", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOCK).write_text(json.dumps(owner(None)))
    with open(tmp_path / "gspo-alive" / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(SamplerConfig(), None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gspo-alive", "other"]


def test_whose_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert owner(Path("run")) == owner(None) | {"run": str(tmp_path / "run")} and owner(None)["run"] == ""
    assert place_of(SamplerConfig(weight_dir="/x")) == Path("/x")
    assert place_of(SamplerConfig()) == (MEMORY if MEMORY.is_dir() else Path(tempfile.gettempdir()))
