"""`gspo probe` and `gspo train --from-probe` as a user types them."""

import json

import pytest

from gspo.cli import main
from gspo.config.files import load
from gspo.probe import advice
from gspo.probe import run as probe_run
from gspo.probe.page import headline
from gspo.probe.run import ages_of
from gspo.runs.folder import RunFolder
from tests.tiny_run import ROWS, model

CONFIG = """
[model]
path = "model"
device = "cpu"
[task]
source = "rows.jsonl"
[reward]
functions = ["likes:likes_a"]
[rollout]
num_prompts = 8
num_generations = 4
max_completion_length = 8
[optimizer]
lr = 3e-3
[train]
steps = 2
[eval]
every = 0
num_prompts = 4
[log]
dir = "run"
"""
PROBE = ["probe", "run.toml", "--groups", "32", "--fresh", "48", "--warm", "1", "--ages", "0,3"]
SHORT = [*PROBE, "--groups", "16", "--fresh", "16"]  # where no advice is needed
LIKES = """
def likes_a(prompts, completions, **columns):
    return [c.count("a") / max(1, len(c)) for c in completions]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = model()
    tiny.model.save_pretrained("model")
    tiny.tokenizer.save_pretrained("model")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "run.toml").write_text(CONFIG)
    (tmp_path / "likes.py").write_text(LIKES)
    return tmp_path


def test_a_probe_and_a_run_that_takes_its_advice(here, capsys, monkeypatch):
    monkeypatch.setattr(advice, "FAR", 1.0)  # as far as it moves here; which settings there are to take is another matter
    assert main([*PROBE, "--dir", "probed"]) == 0
    out = capsys.readouterr().out
    told = json.loads((here / "probed/probe.json").read_text())
    assert f"page    {here}" not in out and "page    probed/probe.html" in out and told["reasons"][0] in out
    page = (here / "probed/probe.html").read_text()
    assert "gspo train CONFIG.toml --from-probe probed" in page and page.count("<figure>") == len(
        list((here / "probed/figures").glob("*-dark.png"))
    )
    assert {line["name"] for line in told["lines"]} >= {"yours", "grpo 0.2", "gspo auto", "reinforce"}
    assert [age["age"] for age in told["ages"]] == [0, 3] and "NaN" not in (here / "probed/probe.json").read_text()
    assert told["recommended"] is not None
    assert main(["train", "run.toml", "--from-probe", "probed"]) == 0
    ran = load(here / "run/config.toml").algorithm
    assert {name: getattr(ran, name) for name in told["recommended"]} == told["recommended"]
    assert told["own"]["algorithm.name"] == "gspo" and told["update_by_age"]["yours"].keys() == {"0", "3"}
    assert load("run.toml").algorithm.name == "gspo" and ran.old_logprobs in ("auto", "sampler", "recompute")
    capsys.readouterr()
    assert main(["train", "run.toml", "--from-probe", "probed", "--optimizer.lr", "1e-5", "--log.dir", "other"]) == 2
    assert "optimizer.lr was 0.003 there and is 1e-05 here, and the advice depends on it" in capsys.readouterr().err
    assert main([*PROBE, "--dir", "probed"]) == 2
    assert "--dir probed: exists already; give another" in capsys.readouterr().err


def test_ctrl_c_keeps_the_ages_that_were_measured(here, capsys, monkeypatch):
    measured = probe_run.measure

    def interrupted(run, plan):
        walk = measured(run, plan)
        yield next(walk)
        raise KeyboardInterrupt

    monkeypatch.setattr(probe_run, "measure", interrupted)
    assert main([*SHORT, "--dir", "probed"]) == 130
    assert "interrupted; what was measured until then is in probed" in capsys.readouterr().err
    assert [age["age"] for age in json.loads((here / "probed/probe.json").read_text())["ages"]] == [0]
    assert (here / "probed/probe.html").exists()
    told = json.loads((here / "probed/probe.json").read_text())
    assert told["recommended"] is None and "measured at age 0, and the run trains at ages 0, 1, 2, 3" in told["reasons"][0]


def test_a_probe_that_had_measured_nothing_is_begun_anew_by_its_own_command(here, capsys, monkeypatch):
    monkeypatch.setattr(probe_run, "measure", lambda run, plan: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main([*SHORT, "--dir", "probed"]) == 130
    assert "interrupted; nothing was measured" in capsys.readouterr().err
    assert [path.name for path in (here / "probed").iterdir()] == ["run"]
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert main([*SHORT, "--dir", "probed", "--ages", "0"]) == 0
    assert (here / "probed/probe.html").exists()


def test_a_probe_that_is_under_way_keeps_its_run(here, capsys):
    with RunFolder.create(here / "probed/run", ""):
        assert main([*SHORT, "--dir", "probed"]) == 2
    assert "--dir probed: another probe is under way there; wait for it, or give another" in capsys.readouterr().err
    assert (here / "probed/run/config.toml").exists()


@pytest.mark.parametrize("kept", ["metrics.jsonl", "model", "checkpoints/step_1", "config.toml"])
def test_a_run_of_the_users_is_never_taken_for_what_a_probe_left(here, capsys, kept):
    """A folder whose only content is called "run" may be theirs; the last has no config.toml."""
    path = here / "runs/run" / kept
    path.parent.mkdir(parents=True)
    (here / "runs/run/config.toml").write_text("")
    path.unlink() if kept == "config.toml" else path.write_text("1\n")
    assert main([*SHORT, "--dir", "runs"]) == 2
    assert "--dir runs: exists already; give another" in capsys.readouterr().err
    assert (here / "runs/run").is_dir() and path.exists() == (kept != "config.toml")


def test_what_was_measured_is_there_where_the_next_age_fails(here, capsys, monkeypatch):
    measured = probe_run.measure

    def broken(run, plan):
        walk = measured(run, plan)
        yield next(walk)
        raise RuntimeError("the engine is dead")

    monkeypatch.setattr(probe_run, "measure", broken)
    assert main([*SHORT, "--dir", "probed"]) == 1
    assert "the engine is dead" in capsys.readouterr().err and (here / "probed/measured.npz").exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ages", "1,2"], "--ages: '1,2': must be numbers of updates that begin with 0 and grow"),
        (["--ages", "0,3,3"], "must be numbers of updates that begin with 0 and grow"),
        (["--ages", "0,x"], "must be numbers of updates that begin with 0 and grow"),
        (["--groups", "0"], "--groups: '0': must be a whole number from 1"),
        (["--fresh", "7"], "--fresh 7: the right gradient needs at least 8 groups for an interval"),
        (["--algorithm.name", "ppo"], "gspo probe compares objectives on the advantages of groups"),
        (["--scale.ranks", "2"], "gspo probe runs in one process: set it to 1"),
        (["--model.path", "./nowhere"], "nowhere"),
        (["--task.source", "gone.jsonl"], "gone.jsonl"),
    ],
)
def test_bad_input_is_told_in_one_line(here, capsys, words, text):
    assert main([*PROBE, "--dir", "probed", *words]) in (1, 2)
    assert text in capsys.readouterr().err
    assert not (here / "probed").exists()


def test_the_ages_that_a_run_trains_at_are_measured_and_some_beyond():
    assert ages_of(1) == (0, 2)
    assert ages_of(4) == (0, 1, 2, 3, 6)
    assert ages_of(16) == (0, 1, 2, 4, 8, 15, 30)


def test_the_headline_says_what_to_do():
    class Told:
        candidate = None

    assert headline(Told()) == "The probe could not tell"
