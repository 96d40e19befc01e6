"""Whole studies on a tiny model, and study files that are refused."""

import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from gspo.cli import main
from gspo.study.analysis import Interval
from gspo.study.compare import compare
from gspo.study.page import write_summary
from tests.tiny_run import ROWS, model

BASE = """
title = "Which one?"
plan = "Fixed <b>before</b> anything ran."
seeds = [3, 4]
threads = 1
last = 2
baseline = "GRPO"
[base]
model = {path = "tiny"}
task = {source = "rows.jsonl"}
reward = {functions = ["letters:likes_a"], correct_at = 0.5}
rollout = {num_prompts = 4, num_generations = 2, max_completion_length = 6}
optimizer = {lr = 3e-3}
train = {steps = 3}
[variants.GRPO]
algorithm = {name = "grpo"}
[variants."GSPO auto"]
algorithm = {name = "gspo", epsilon = "auto"}
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model().save("tiny")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "letters.py").write_text(
        "def likes_a(prompts, completions, **columns):\n    return [c.count('a') / max(1, len(c)) for c in completions]\n"
    )
    return tmp_path


def write(place, text):
    (place / "study.toml").write_text(text)
    return place / "study.toml"


def rows(folder):
    with open(folder / "results.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_study_from_start_to_end_and_again(place, capsys):
    study = write(place, BASE + '[variants.broken]\ntask = {source = "rows.csv"}\nseeds = [4]\n')
    assert compare(study, place / "out") == 1
    output = capsys.readouterr().out
    assert "5 of 5 cells to run" in output and "failed  runs/broken/seed4" in output and "rows.csv" in output
    cells_now = rows(place / "out")
    assert [(r["variant"], r["seed"], r["status"]) for r in cells_now] == [
        ("GRPO", "3", "done"), ("GRPO", "4", "done"), ("GSPO auto", "3", "done"), ("GSPO auto", "4", "done"),
        ("broken", "4", "failed"),
    ]  # fmt: skip
    page = (place / "out" / "compare.html").read_text()
    assert "Which one?" in page and "&lt;b&gt;before" in page and "Not in the numbers" in page and "rows.csv" in page
    summary = json.loads((place / "out" / "results.json").read_text())["reward"]
    assert [line["variant"] for line in summary] == ["GRPO", "GSPO auto", "broken"]
    assert summary[1]["difference"]["n"] == 2
    cells = place / "out" / "cells" / "runs"
    first = [json.loads((cells / v / "seed3" / "rollouts.jsonl").read_text().splitlines()[0]) for v in ("GRPO", "GSPO-auto")]
    assert first[0]["prompt_id"] == first[1]["prompt_id"] and first[0]["token_ids"] == first[1]["token_ids"]  # paired
    before = {path: path.stat().st_mtime for path in cells.rglob("metrics.jsonl")}
    write(place, BASE)
    assert compare(study, place / "out") == 0
    assert "to run" not in capsys.readouterr().out
    assert {path: path.stat().st_mtime for path in cells.rglob("metrics.jsonl")} == before  # finished is kept
    write(place, BASE.replace("lr = 3e-3", "lr = 1e-3"))
    with pytest.raises(ValueError, match=r"holds a cell of another study: there optimizer\.lr = 0\.001 differs"):
        compare(study, place / "out")
    write(place, BASE.replace("steps = 3", "steps = 4"))
    assert compare(study, place / "out", only="runs/GRPO/seed3") == 0
    assert [(r["status"], r["steps"]) for r in rows(place / "out")] == [("done", "4")] + [("not run", "")] * 3


def test_a_study_that_is_stopped_goes_on(place):
    study = write(place, BASE.replace("steps = 3", "steps = 400").replace("[3, 4]", "[3]"))
    command = [sys.executable, "-m", "gspo.cli", "compare", str(study), "--dir", "out", "--only", "runs/GRPO"]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE)
    metrics = place / "out" / "cells" / "runs" / "GRPO" / "seed3" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    steps = metrics.read_text().count("\n")
    assert 3 < steps < 400
    assert list((metrics.parent / "checkpoints").glob(f"step_{steps:06d}"))  # it saved the step it was in
    write(place, BASE.replace("steps = 3", f"steps = {steps + 1}").replace("[3, 4]", "[3]"))
    assert compare(study, "out", only="runs/GRPO") == 0
    assert metrics.read_text().count("\n") == steps + 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [3, 4]", "", "seeds = None: a list of whole numbers"),
        ("seeds = [3, 4]", "seeds = [3, 3]", "each seed once"),
        ("seeds = [3, 4]", "seed = [3]", "seed: unknown key, did you mean seeds"),
        ('baseline = "GRPO"', 'baseline = "GRPOO"', "baseline = 'GRPOO': is no variant, did you mean GRPO"),
        ('name = "grpo"', 'name = "grop"', "GRPO: algorithm.name = 'grop': allowed are .* did you mean grpo"),
        ("lr = 3e-3", "rl = 3e-3", r"optimizer\.rl = 0\.003: unknown key"),
        ("train = {steps = 3}", "train = {steps = 3, seed = 1}", ""),
        ('algorithm = {name = "grpo"}', "train = {seed = 1}", r"GRPO: train\.seed: the study sets it"),
        ("last = 2", "last = 0", "last = 0: must be a whole number of at least 1"),
        ("threads = 1", 'threads = "all"', "threads = 'all': must be a whole number"),
        ("[base]", "[bases]", "bases: unknown key"),
        ('model = {path = "tiny"}', "", r"model\.path is required"),
        ("[variants.GRPO]", '[settings."x"]\nonly = ["GRP"]\n[variants.GRPO]', "'GRP' is no variant, did you mean GRPO"),
        ("[variants.GRPO]", '[variants."GRPO "]\n[variants.GRPO]', "two cells would have the folder"),
        ("num_prompts = 4", "num_prompts = 5", r"num_prompts = 5 cannot be split"),
        ("title =", "title", "cannot be read as TOML"),
    ],
)
def test_a_bad_study_is_refused_before_anything_runs(place, capsys, old, new, message):
    assert old in BASE
    write(place, BASE.replace(old, new))
    status = main(["compare", "study.toml", "--dir", "out", "--dry-run"])
    assert status == (2 if message else 0)
    assert re.search(message, capsys.readouterr().err)
    assert not (place / "out").exists()


def test_what_the_command_line_refuses(place, capsys):
    assert main(["compare", "none.toml"]) == 2 and "no such study file" in capsys.readouterr().err
    write(place, BASE)
    assert (
        main(["compare", "study.toml", "--only", "x"]) == 2 and "matches none of runs/GRPO/seed3" in capsys.readouterr().err
    )
    assert main(["compare", "study.toml", "--dry-run", "--train.steps", "9"]) == 0
    assert capsys.readouterr().out.count("missing") == 4


def test_the_summary_has_null_for_nan_and_leaves_words_alone(tmp_path):
    study = SimpleNamespace(title="NaN or not", plan="", baseline="GRPO")
    line = {"reward": Interval(0.5, math.nan, math.inf, 1), "bootstrap": (math.nan, math.nan)}
    write_summary(study, {"reward": [line]}, tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["title"] == "NaN or not"
    assert results["reward"] == [{"reward": {"mean": 0.5, "low": None, "high": None, "n": 1}, "bootstrap": [None, None]}]
