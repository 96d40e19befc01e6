"""Opening a run's folder, and the log records of gspo, which become events of the run."""

import logging
import shutil

import pytest

from gspo.config.checks import check_required
from gspo.config.files import from_dict, load, to_toml
from gspo.report.read import read_lines
from gspo.runs import checkpoint
from gspo.runs.folder import RunFolder
from gspo.runs.open import claimed, open_run


def config(folder, **sections):
    return from_dict({"log": {"dir": str(folder)}, "train": {"steps": 4}} | sections)


def go(made, resume, steps):
    """Opens a run, does these steps and saves the last; the state that it went on from."""
    with claimed(made, resume) as found, open_run(*found, "t") as (log, _, state):
        begun = log.step
        for step in steps:
            log.metrics({"step": step})
        if steps:
            path = log.folder.checkpoints
            saved = {"log": log.position(), "begun": begun}
            checkpoint.save(path, steps[-1], lambda part: (part / checkpoint.LEARNER).touch(), saved, to_toml(made), 2)
            log.metrics({"step": steps[-1] + 1})  # after the checkpoint: lost with the process
    return state


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    made = config(tmp_path / "run")
    assert go(made, False, [1, 2]) is None
    state = go(config(tmp_path / "run", train={"steps": 9}), True, [3])
    assert (state["step"], state["begun"]) == (2, 0)
    assert [line["step"] for line in read_lines(tmp_path / "run" / "metrics.jsonl")] == [1, 2, 3, 4]
    assert load(tmp_path / "run" / "config.toml").train.steps == 9  # the newest word stands there


def test_secrets_are_in_no_file_and_may_change_when_a_run_goes_on(tmp_path):
    def made(key, **more):
        request = {"api_key": key, "headers": {"Authorization": f"Bearer {key}"}}
        rewards = {"judge": {"request": request}, "log": {"dir": str(tmp_path / "run"), "trackers": ["tensorboard"]}}
        return config(tmp_path / "run", task={"config": {"url": f"http://me:{key}@host", "n": 1} | more}, **rewards)

    go(made("first-key"), False, [1, 2])
    assert go(made("second-key"), True, [3])["step"] == 2
    with pytest.raises(ValueError, match=r"task\.config = \{'url': 'http://<hidden>@host', 'n': 2\} cannot be changed"):
        go(made("second-key", n=2), True, [4])
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [content for content in written if b"first-key" in content or b"second-key" in content]
    kept = load(tmp_path / "run" / "config.toml")
    assert kept.judge.request["api_key"] == "<hidden>" and kept.task.config["n"] == 1
    with pytest.raises(ValueError, match=r"task\.config\.url: run folders keep no secrets.*put the secret back"):
        check_required(kept)


def test_an_error_that_ends_a_run_is_written_down(tmp_path):
    made = config(tmp_path / "run")
    with pytest.raises(RuntimeError), claimed(made, False) as nothing, open_run(*nothing, "t") as (log, _, _):
        log.metrics({"step": 1})
        raise RuntimeError("it broke at http://me:word@host")
    (event,) = read_lines(tmp_path / "run" / "events.jsonl")
    assert event == {"step": 1, "kind": "error", "text": "RuntimeError: it broke at http://<hidden>@host"}
    go(made, True, [1])
    assert not list(read_lines(tmp_path / "run" / "events.jsonl"))  # it went on


def test_a_run_without_a_checkpoint_begins_again(tmp_path):
    made = config(tmp_path / "run")
    with claimed(made, False) as none:
        assert none == (made, None, None) and not (tmp_path / "run").exists()
    go(made, False, [])
    assert go(made, True, [1]) is None


def test_a_run_without_a_name_for_its_folder_is_given_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for dir in ("auto", "mine"):
        with pytest.raises(OSError), claimed(config(dir), False) as (made, _, _):
            assert (tmp_path / made.log.dir).is_dir()
            raise OSError("the model is not there")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]  # only an empty folder that nobody else made is removed
    for name in ("runs/run", "runs/run-2"):
        go(config("auto"), False, [1, 2])
        assert load(f"{name}/config.toml").log.dir == name
    assert go(config("auto"), True, [3])["step"] == 2
    assert [len(list(read_lines(tmp_path / f"runs/{name}/metrics.jsonl"))) for name in ("run", "run-2")] == [3, 4]


def test_settings_changed_by_hand_do_not_make_another_run(tmp_path):
    """Neither in the run's config.toml alone, nor where the changed file is used to go on."""
    made = config(tmp_path / "run")
    go(made, False, [1, 2])
    settings = tmp_path / "run" / "config.toml"
    settings.write_text(settings.read_text().replace('lr = "auto"', "lr = 0.5"))
    with pytest.raises(ValueError, match=r"optimizer\.lr = 0\.5 cannot be changed in a resumed run: it began with 'auto'"):
        go(load(settings), True, [3])
    settings.write_text("[train")
    assert go(made, True, [3])["step"] == 2
    assert load(settings).train.steps == 4  # it was written again
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "checkpoints").mkdir()
    settings.write_text("[train]\nsteps = 'ten'\n")
    with pytest.raises(ValueError, match=r"run/config\.toml: train\.steps = 'ten'.*put them back as they were"):
        go(made, True, [3])


def test_what_is_refused_before_anything_is_made(tmp_path):
    go(config(tmp_path / "run"), False, [1])
    with claimed(config(tmp_path / "run"), True), pytest.raises(RuntimeError, match="another process is writing"):
        RunFolder.resume(tmp_path / "run")  # it is held before it is read
    with pytest.raises(ValueError, match="is not empty; go on with that run by --resume"):
        claimed(config(tmp_path / "run"), False).__enter__()
    with pytest.raises(ValueError, match="no such run folder to resume"), claimed(config(tmp_path / "other"), True):
        pass
    assert not (tmp_path / "other").exists()


def test_what_gspo_logs_becomes_an_event(tmp_path):
    """A warning once, also where a resumed run gives it again; and no record of another library."""
    made = config(tmp_path / "run")
    for resume in (False, True):
        with claimed(made, resume) as found, open_run(*found, "t") as (log, _, _):
            for name, text in (("gspo.data", "ours"), ("gspo_more", "theirs"), ("gspo.agents.chat", "ours"), ("", "root")):
                logging.getLogger(name).warning(text)
            logging.getLogger("gspo.data").info("fact")
            logging.getLogger("gspo.data").debug("detail")
            log.note("noted")
            if not resume:
                checkpoint.save(log.folder.checkpoints, 1, lambda part: None, {"log": log.position()}, to_toml(made), 2)
    events = [(line["kind"], line["text"]) for line in read_lines(tmp_path / "run" / "events.jsonl")]
    once = [("warning", "ours")]
    assert events == [*once, ("info", "fact"), ("info", "noted"), ("info", "fact"), ("info", "noted")]
