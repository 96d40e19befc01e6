"""The trackers, with the real libraries where they are installed."""

import importlib.util
import json
import sqlite3

import pytest

from gspo.runs.trackers import open_trackers

CONFIG = {"algorithm": {"name": "gspo", "epsilon": 3e-4}}


def test_tensorboard_has_each_step_once_after_a_resume(tmp_path):
    pytest.importorskip("torch")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for begin, end in ((0, 3), (0, 4), (2, 6)):  # killed after steps 3 and 4, and resumed without and with a checkpoint
        (tracker,) = open_trackers(["tensorboard"], tmp_path, "gspo", CONFIG, step=begin)
        for step in range(begin + 1, end + 1):
            tracker.log({"reward": step / 10, "clip_ratio/low_mean": 0.1}, step)
        tracker.close()
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["reward", "clip_ratio/low_mean"]
    assert [(e.step, round(e.value, 3)) for e in events.Scalars("reward")] == [(s, s / 10) for s in range(1, 7)]
    assert "config/text_summary" in events.Tags()["tensors"]


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline_needs_no_login_and_resumes_its_run(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for begin in (0, 2):
        (tracker,) = open_trackers(["wandb"], tmp_path, "gspo", CONFIG, step=begin)
        tracker.log({"reward": 0.5}, begin + 1)
        assert tracker._run.config["algorithm"]["name"] == "gspo"
        tracker.close()
    run_id = (tmp_path / "run_id").read_text()
    files = list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) >= 1 and {f.name for f in files} == {f"run-{run_id}.wandb"}


@pytest.mark.skipif(importlib.util.find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_resumes_its_run(tmp_path, monkeypatch):
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.sqlite_storage, trackio.utils):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "store", raising=False)
    run = tmp_path / "demo"
    run.mkdir()
    for begin in (0, 2):
        (tracker,) = open_trackers(["trackio"], run, "gspo", CONFIG, step=begin)
        for step in (begin + 1, begin + 2):
            tracker.log({"reward": step / 10}, step)
        tracker.close()
    with sqlite3.connect(tmp_path / "store" / "gspo.db") as base:
        rows = base.execute("select run_name, step, metrics from metrics order by step").fetchall()
    name = f"demo-{(run / 'run_id').read_text()}"
    assert [(n, s, json.loads(m)["reward"]) for n, s, m in rows] == [(name, s, s / 10) for s in (1, 2, 3, 4)]
