"""gspo sft and gspo train: whole runs through files alone."""

import signal
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from gspo.cli.arguments import take_fields
from gspo.cli.commands import parse
from gspo.cli.main import main
from gspo.cli.train import configured, prepared
from gspo.config.files import load
from gspo.config.names import RESUME
from tests.patience import PATIENCE
from tests.training.whole import lines


def test_the_cold_start_learns(place):
    losses = [line["loss"] for line in lines(place / "cold" / "metrics.jsonl")]
    assert losses[-1] < losses[0] / 2


def test_training_begins_with_the_cold_model_and_resumes(place):
    begun, whole = lines(place / "first.jsonl"), lines(place / "run" / "metrics.jsonl")
    assert [line["step"] for line in begun] == [0, 1, 2, 3]
    assert [line["step"] for line in whole] == [0, 1, 2, 3, 4]
    assert whole[:2] == begun[:2]
    assert begun[1]["reward"] > 0  # a model with random weights gets none right
    assert load(place / "run" / "config.toml").train.steps == 4
    cold, trained = (AutoModelForCausalLM.from_pretrained(place / name / "model") for name in ("cold", "run"))
    assert not all(torch.equal(a, b) for a, b in zip(cold.parameters(), trained.parameters()))


def test_a_failed_run_ends_with_1_and_without_a_traceback(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    words = ["train", "train.toml", "--resume", "--train.steps=5"]
    (place / "run" / "metrics.jsonl").rename(place / "kept")
    assert main(words) == 1
    assert "gspo: error: run/metrics.jsonl has 0 bytes" in capsys.readouterr().err
    (place / "kept").rename(place / "run" / "metrics.jsonl")


def test_a_run_without_a_file_says_where_its_settings_are(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    words = "train --model cold/model --data rows.jsonl --reward exact --model.device=cpu --train.steps=1"
    short = "--eval.num_prompts=0 --rollout.num_prompts=4 --rollout.num_generations=2 --rollout.max_completion_length=2"
    assert main([*words.split(), *short.split()]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[-1] == "settings runs/run/config.toml"
    assert shown.err.startswith("gspo: log.dir is not set: the run folder is runs/run\n")
    assert "gspo: loading the model cold/model\ngspo: loaded the model cold/model in " in shown.err
    ran = load(place / "runs" / "run" / "config.toml")
    assert (ran.model.path, ran.task.source, ran.reward.functions) == ("cold/model", "rows.jsonl", ["exact"])
    for more, number in (([], "run-2"), (["--resume"], "run")):  # the next run, and this one again
        plain, fields = take_fields([*words.split(), *short.split(), *more])
        arguments = parse(plain, fields)[1]
        assert prepared(configured(arguments, fields), arguments).log.dir == arguments.folder == f"runs/{number}"


def test_short_options_go_before_the_file(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    words = "train --resume train.toml --model other --reward=math,exact --train.steps 9"
    plain, fields = take_fields(words.split())
    config = configured(parse(plain, fields)[1], fields)
    assert (config.model.path, config.reward.functions, config.train.steps) == ("other", ["math", "exact"], 9)
    assert config.task.source == "rows.jsonl"
    for words, why in (
        ("train", "give a configuration file or recipe:NAME (`gspo recipes`), or --model MODEL --data DATA --reward REWARD"),
        ("sft --data rows.jsonl", "(`gspo recipes`), or --model MODEL --data DATA\n"),
        ("serve --serve.port=1", "(`gspo recipes`), or --model MODEL\n"),
        ("train --model a --model.path=b", "--model and --model.path: leave one of them out"),
        ("train --model cold/model", "task.source is required"),
        ("sft cold.toml --reward exact", "--reward: unknown option: it is of `gspo train`"),
    ):
        assert main(words.split()) == 2
        assert why in capsys.readouterr().err


FALLS = """
seen = 0
def falls(prompts, completions, **columns):
    global seen
    seen += len(completions)
    return [float(seen <= 16 * 4)] * len(completions)
"""


def test_a_run_that_the_guard_stops_has_failed(place, capsys, monkeypatch):
    """Nobody asked it to end: a script that trains and then goes on must not take it for a run that was interrupted."""
    monkeypatch.chdir(place)
    (place / "falls.py").write_text(FALLS)
    guard = ["--guard.action=stop", "--guard.window=2", "--guard.patience=1"]
    words = ["train", "train.toml", "--reward.functions=falls:falls", "--train.steps=30", "--log.dir=fell"]
    assert main([*words, *guard, "--eval.every=0"]) == 1
    told = capsys.readouterr()
    assert "stopped fell" in told.out and "stopped, since the run collapsed" in told.err + told.out


WAITS = """
import sys, time
def rows():
    print("begun", flush=True)
    time.sleep(10_000)
"""


def test_ctrl_c_while_loading_says_what_works(place):
    (place / "waits.py").write_text(WAITS)
    command = [sys.executable, "-m", "gspo", "train", "train.toml", "--task.source=waits:rows", "--log.dir=never"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=place, text=True)
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert error.endswith("gspo: interrupted before anything was begun: start it again without --resume\n")


@pytest.mark.parametrize(
    ("words", "way"),
    [
        ("train train.toml --log.dir never", " before anything was begun: start it again without --resume"),
        ("train train.toml --log.dir begun", f"; no checkpoint was saved yet: {RESUME} begins with the first step"),
        ("train train.toml", f"; {RESUME} goes on from the last checkpoint, step_00000"),
        ("sft cold.toml", f"; {RESUME} goes on from the last checkpoint, step_000030"),
        ("eval train.toml", ""),
        ("report run", ""),
        ("compare study.toml", "; the same command goes on with what is left"),
        ("demo --dir nowhere", "; start it again without --resume"),
        ("demo --dir run", "; start it again with --resume"),
        ("demo --dir old --moe", "; start it again with --moe --resume"),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(place, monkeypatch, words, way):
    monkeypatch.chdir(place)
    for folder in ("begun/checkpoints", "old-cold-start"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "begun" / "config.toml").write_text("")
    plain, fields = take_fields(words.split())
    command, arguments = parse(plain, fields)
    said = command.resume_hint(arguments, fields)
    assert said.startswith(way) and bool(said) == bool(way)
