"""How the cells of a study run, and how they end."""

import contextlib
import dataclasses
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gspo.compare.cells import finished, run_cells
from gspo.compare.compare import compare
from gspo.compare.spec import read
from gspo.config.files import as_config, to_toml
from tests.compare.forked import ForkedGspo, fork_cells
from tests.compare.studies import BASE, write
from tests.launch.started import wait_for
from tests.patience import PATIENCE


def cells(place, *others):
    """The processes that run in this folder, beside this one and the others: cells."""
    running = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cwd").readlink() == place:
                running.add(int(folder.name))
    return running - {os.getpid(), *(process.pid for process in others)}


def lines(metrics):
    return metrics.read_text().count("\n") if metrics.exists() else 0


def begun(place, steps, start=subprocess.Popen):
    """A study of one cell that has made some of its steps: its process, its file and the cell's metrics. start: makes the
    process.
    """
    study = write(place, BASE.replace("steps = 3", f"steps = {steps}").replace("[3, 4]", "[3]"))
    command = [sys.executable, "-m", "gspo", "compare", str(study), "--dir", "out", "--only", "runs/GRPO"]
    process = start(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
    metrics = place / "out" / "cells" / "runs" / "GRPO" / "seed3" / "metrics.jsonl"
    wait_for(lambda: lines(metrics) > 3 or process.poll() is not None)
    return process, study, metrics


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_study_that_is_stopped_goes_on(place, monkeypatch, number):
    """Ctrl-C with processes that a user would have. What a cell is told is the same for the others: there forks do."""
    start = subprocess.Popen
    if number != signal.SIGINT:
        fork_cells(monkeypatch)
        start = ForkedGspo
    process, study, metrics = begun(place, 4000, start)
    assert cells(place, process)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 130
    assert not cells(place)
    done = metrics.read_text().count("\n")
    assert 3 < done < 4000
    assert list((metrics.parent / "checkpoints").glob(f"step_{done:06d}"))  # it saved the step it was in
    write(place, BASE.replace("steps = 3", f"steps = {done + 1}").replace("[3, 4]", "[3]"))
    fork_cells(monkeypatch)
    assert compare(study, "out", only="runs/GRPO") == 0
    assert metrics.read_text().count("\n") == done + 1


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end on Linux alone")
def test_cells_of_a_study_that_is_killed_save_and_end(place):
    """The study is a fork; its cell is started, for what it asks of the kernel must outlast that."""
    process, _, metrics = begun(place, 4000, ForkedGspo)
    assert cells(place, process)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    wait_for(lambda: not cells(place))
    done = metrics.read_text().count("\n")
    assert 3 < done < 4000
    assert list((metrics.parent / "checkpoints").glob(f"step_{done:06d}"))  # it saved the step it was in


def test_a_file_of_the_users_folder_is_not_pythons(place, monkeypatch):
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path != str(place)))
    for name in ("tempfile", "typing"):  # typing: gspo itself imports it, before its modules
        (place / f"{name}.py").write_text("raise SystemExit('error: this is not what was asked for')")
    cell = read(write(place, BASE.replace("steps = 3", "steps = 1").replace("last = 2", "last = 1")), place / "out").cells[0]
    (outcome,) = run_cells([cell], 1, 1, lambda outcome, left: None)
    assert (outcome.status, outcome.reason) == ("done", "")


def test_what_is_finished_is_kept_and_what_fails_says_why(place, monkeypatch):
    fork_cells(monkeypatch)
    broken = '[variants.broken]\ntask = {source = "letters:lost", config = {api_key = "sk-1234"}}\n'
    done, _, lost = read(write(place, BASE.replace("[3, 4]", "[3]") + broken), place / "out").cells
    folder = Path(done.config.log.dir)
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(done.config))
    (folder / "metrics.jsonl").write_text('{"step": 2}\n')
    assert not finished(done) and not finished(lost)
    (folder / "metrics.jsonl").write_text('{"step": 2}\n{"step": 3}\n')
    assert finished(done)
    (folder / "events.jsonl").write_text('{"step": 3, "kind": "error", "text": "the sampler is lost"}\n')
    assert not finished(done)  # its last evaluation is missing
    (folder / "metrics.jsonl").write_text('{"step": 2}\n')
    (folder / "events.jsonl").write_text('{"step": 2, "kind": "collapse", "text": "the reward"}\n')
    assert finished(done)  # the guard has stopped it: it counts, as one that collapsed
    heard = []
    (failed,) = run_cells([lost], 2, 1, lambda outcome, left: heard.append((outcome.cell.variant, left)))
    assert heard == [("broken", 0)]
    assert failed.status == "failed" and "letters:lost" in failed.reason and failed.seconds > 0
    file = folder.parents[1] / "broken" / "seed3.toml"  # the run needs its secrets: nobody else reads them
    assert "sk-1234" in file.read_text() and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "sk-1234" not in file.with_suffix(".txt").read_text() + failed.reason
    (folder / "events.jsonl").unlink()
    (folder / "metrics.jsonl").write_text('{"step": 3}\n')
    # A resumed run may change the last two, a cell not.
    for section, key, value in (("optimizer", "lr", 0.5), ("eval", "every", 2), ("guard", "collapse", 0.25)):
        other = dataclasses.replace(done, config=as_config(done.config, {section: {key: value}}))
        with pytest.raises(ValueError, match=rf"holds a cell of another study: {section}\.{key} = .* there, {value!r} in"):
            finished(other)
    falling, longer = {"optimizer": {"schedule": "linear"}}, {"train": {"steps": 9}}
    (folder / "config.toml").write_text(to_toml(as_config(done.config, falling)))
    with pytest.raises(ValueError, match=r"holds a cell of another study: train\.steps = 3 there, 9"):  # two falls in a row
        finished(dataclasses.replace(done, config=as_config(done.config, falling | longer)))
    (folder / "config.toml").write_text(to_toml(done.config))
    shorter = dataclasses.replace(done, config=as_config(done.config, {"train": {"steps": 2}}))
    with pytest.raises(ValueError, match=r"holds a cell of 3 steps, more than train\.steps = 2\. Delete the folder"):
        finished(shorter)
    (folder / "config.toml").write_text("[train]\nstepz = 1")
    with pytest.raises(
        ValueError, match=r"seed3/config\.toml: train\.stepz = 1: .* mean train\.steps\? Delete the folder, "
    ):
        finished(done)
