"""The command line: help, and whole runs through files."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib

import pytest
import torch
from transformers import AutoModelForCausalLM

import gspo
from gspo.cli.arguments import take_fields
from gspo.cli.commands import parse
from gspo.cli.main import main
from gspo.config.files import from_dict, load
from gspo.config.names import ELSEWHERE, RESUME, all_keys
from gspo.config.schema import Config
from tests.patience import PATIENCE
from tests.tiny_run import model

COMMANDS = ["train", "sft", "eval", "report", "demo", "config"]
COLD_START = """
[model]
path = "model"
device = "cpu"
[task]
source = "rows.jsonl"
completion_column = "answer"
[optimizer]
lr = 1e-2
[train]
steps = 30
batch_size = 16
save_every = 100
[log]
dir = "cold"
"""
TRAIN = """
[model]
path = "cold/model"
device = "cpu"
[task]
source = "rows.jsonl"
[reward]
functions = ["exact"]
[rollout]
num_prompts = 4
num_generations = 4
max_completion_length = 4
[optimizer]
lr = 1e-3
[train]
steps = 3
save_every = 2
[eval]
every = 2
num_prompts = 8
[log]
dir = "run"
"""


def test_help_of_every_command(capsys):
    for command in [None, *COMMANDS]:
        with pytest.raises(SystemExit) as stopped:
            main([*([command] if command else []), "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert text.startswith(f"usage: gspo {command or '[-h]'}")
        assert "None" not in text and "%" not in " ".join(text.split()).replace("95 % interval", "")
        assert all(name in text for name in COMMANDS) or command
        if command in ("train", "sft", "eval", "config"):
            assert "--section.key VALUE" in text
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"gspo {gspo.__version__}\n"


def test_help_imports_nothing_heavy():
    """So that it answers at once; a bad configuration is refused as fast."""
    script = """
import sys
from gspo.cli.main import main
for words in (["--help"], ["train", "--help"]):
    try:
        main(words)
    except SystemExit as stopped:
        assert stopped.code == 0
assert main(["train", "missing.toml"]) == 2
assert main(["config", "--train.steps=0"]) == 2
heavy = {"torch", "transformers", "numpy", "datasets", "matplotlib", "rich", "reasoning_gym", "gspo.api"} & set(sys.modules)
assert not heavy, heavy
import gc
from gspo.launch.processes import importing
with importing():
    import gspo.assembly.rank, gspo.api
assert "matplotlib" not in sys.modules and gc.isenabled()  # only whoever writes a report needs it
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "COMMAND" in ended.stdout


def test_python_starts_it_as_a_module():
    for words, status in ((["--version"], 0), (["train", "missing.toml"], 2)):
        command = [sys.executable, "-m", "gspo", *words]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == status, ended.stderr
        expected = f"gspo {gspo.__version__}\n" if not status else ""
        assert ended.stdout == expected and ended.stderr.startswith("gspo: error: missing.toml" if status else "")


def test_code_that_leaves_does_not_pass_for_a_run_that_ended(tmp_path, monkeypatch, capsys):
    """Rows that are read on demand run code of their own wherever gspo looks at them."""
    (tmp_path / "leaving_rows.py").write_text(
        "import sys\nclass Rows(list):\n    def __len__(self): sys.exit(0)\n\ndef rows(): return Rows()\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "eval.toml").write_text(TRAIN.replace("rows.jsonl", "leaving_rows:rows").replace("cold/model", "m"))
    model().save("m")
    assert main(["eval", "eval.toml"]) == 1
    assert "a call of sys.exit(0) that is none of gspo's ended the run" in capsys.readouterr().err


def test_files_beside_the_data_are_not_taken_for_modules(tmp_path):
    """A whole run by `python -m`, whose rows and reward are files of its folder."""
    for name in ("pickle", "random", "csv", "http", "numpy", "torch", "peft", "pyarrow", "sitecustomize", "math_verify"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / name)!r} + '.ran', 'w')\n")
    (tmp_path / "mine.py").write_text(
        "import pickle, random, csv\ndef rows(): return [{'prompt': f'{i}+1=', 'answer': i} for i in range(30)]\n"
        "def score(prompts, completions, answer): return [len(c) for c in completions]\n"
    )
    model().save(str(tmp_path / "m"))
    text = TRAIN.replace("rows.jsonl", "mine:rows").replace("cold/model", "m").replace('"exact"', '"exact", "mine:score"')
    (tmp_path / "train.toml").write_text(text.replace("steps = 3", "steps = 1").replace("every = 2\nnum", "every = 0\nnum"))
    command = [sys.executable, "-m", "gspo", "train", "train.toml"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert not list(tmp_path.glob("*.ran"))


def test_no_name_reaches_the_terminal_raw(capsys):
    assert main(["train", "\x1b[2J\x1b]0;title\x07missing.toml"]) == 2
    assert main(["report", "\x9b2J"]) == 2 and main(["config", "--judge.url.x=http://me:word@host\x1b"]) == 2
    shown = capsys.readouterr().err
    assert "\x1b" not in shown and "\x9b" not in shown and "\x07" not in shown and "word" not in shown
    assert "\\x1b[2J\\x1b]0;title\\x07missing.toml: no such configuration file" in shown


def test_config_prints_a_configuration_that_reads_back(tmp_path, capsys):
    assert main(["config"]) == 0
    tables = tomllib.loads(capsys.readouterr().out)
    assert tables["algorithm"] | {"epsilon": 3e-4, "epsilon_high": 4e-4, "mini_batches": 4} == tables["algorithm"]
    resolved = Config().algorithm, from_dict(tables).algorithm
    assert resolved[0].name == resolved[1].name == "gspo"
    (tmp_path / "train.toml").write_text(TRAIN)
    assert main(["config", str(tmp_path / "train.toml"), "--algorithm.name", "dapo", "--train.steps", "5"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "resolved.toml").write_text(text)
    config = load(tmp_path / "resolved.toml")
    assert config == load(
        tmp_path / "train.toml",
        {"train.steps": 5, "algorithm.name": "dapo", "algorithm.epsilon": 0.2, "algorithm.epsilon_high": 0.28,
         "algorithm.mini_batches": 4, "algorithm.scale_rewards": "group"},
    )  # fmt: skip
    assert "# Number of rollout batches (`gspo sft`: of updates)." in text and "\nsteps = 5\n" in text
    assert main(["config", str(tmp_path / "resolved.toml")]) == 0
    assert capsys.readouterr().out == text


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which `gspo sft`, `train`, `train --resume`, `eval` and `report` have run, through files alone."""
    folder = tmp_path_factory.mktemp("cli")
    model().save(folder / "model")
    rows = [{"prompt": f"{i}+{j}=", "answer": str(i)} for j in range(10) for i in range(10)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "cold.toml").write_text(COLD_START)
    (folder / "train.toml").write_text(TRAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["sft", "cold.toml"]) == 0
        assert main(["train", "train.toml"]) == 0
        (folder / "first.jsonl").write_text((folder / "run" / "metrics.jsonl").read_text())
        assert main(["train", "train.toml", "--resume", "--train.steps=4"]) == 0
        assert (
            main(["eval", "train.toml", "--model.path=run/model", "--eval.num_generations=3", "--out=out/completions.jsonl"])
            == 0
        )
        assert main(["report", "run", "cold"]) == 0
    return folder


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
    changed = [not torch.equal(a, b) for a, b in zip(cold.parameters(), trained.parameters())]
    assert any(changed)


def test_eval_prints_an_interval_and_writes_each_completion(place, monkeypatch, capsys):
    completions = lines(place / "out" / "completions.jsonl")
    assert len(completions) == 8 * 3
    assert {"prompt_id", "prompt", "completion", "reward", "reward_parts", "stop", "error"} <= set(completions[0])
    assert len({completion["prompt_id"] for completion in completions}) == 8
    monkeypatch.chdir(place)
    assert main(["eval", "train.toml", "--model.path=run/model", "--eval.num_generations=3"]) == 0
    shown = capsys.readouterr().out
    mean = sum(completion["reward"] for completion in completions) / len(completions)
    assert shown.startswith(f"model run/model\naccuracy {mean:.4f}  (95 % interval ")
    assert mean > 0.1 and "not scored" not in shown
    assert main(["eval", "train.toml", "--model.path=run/model", "--optimizer.lr=1"]) == 2
    assert "--optimizer.lr: has no effect on `gspo eval`" in capsys.readouterr().err


def test_eval_says_how_many_completions_were_not_scored(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    (place / "odd_grader.py").write_text(
        "def odd(prompts, completions): return [None if i % 3 == 0 else 1.0 for i in range(len(completions))]\n"
    )
    words = ["--model.path=run/model", "--eval.num_generations=3", "--reward.functions=odd_grader:odd"]
    assert main(["eval", "train.toml", *words]) == 0
    shown = capsys.readouterr().out
    assert "accuracy 0.6667  (95 % interval " in shown
    assert shown.splitlines()[1].endswith("; 8 of 24 completions were not scored and count as wrong")


def test_report_and_comparison(place):
    for page in ("run/report.html", "cold/report.html", "run/comparison.html"):
        assert "<html" in (place / page).read_text()
    assert list((place / "run" / "figures").glob("*.png"))


def test_a_failed_run_ends_with_1_and_without_a_traceback(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    words = ["train", "train.toml", "--resume", "--train.steps=5"]
    (place / "run" / "metrics.jsonl").rename(place / "kept")
    assert main(words) == 1
    assert "gspo: error: run/metrics.jsonl has 0 bytes" in capsys.readouterr().err
    (place / "kept").rename(place / "run" / "metrics.jsonl")


@pytest.mark.parametrize("words", [["config"], ["train", "--help"], ["train", "missing.toml"]])
def test_head_ends_quietly(place, words):
    """With a reader that has gone before anything was written, and with one that goes in the middle."""
    for read in (0, 1):
        ours, theirs = os.pipe()
        command = [sys.executable, "-m", "gspo", *words]
        process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, cwd=place, text=True)
        os.close(theirs)
        os.read(ours, read)
        os.close(ours)
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode == (2 if "missing.toml" in words else 0)
        assert "Broken" not in error and "Traceback" not in error and "Exception" not in error
        assert error == "" or words[0] != "config"
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-m", "gspo", "config"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 1 and ended.stderr == "gspo: error: [Errno 28] No space left on device\n"


def test_output_that_was_closed_before_it_began_ends_no_command(place):
    for command, status in (("config", 0), ("report run", 0), ("train missing.toml", 2)):
        words = f"exec {sys.executable} -m gspo {command} >&-"
        ended = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, cwd=place, text=True, timeout=PATIENCE)
        assert ended.returncode == status, ended.stderr
        assert ended.stderr == ("" if status == 0 else "gspo: error: missing.toml: no such configuration file\n")


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
        (
            "train train.toml --log.dir begun",
            f"; no checkpoint was saved yet: {RESUME} begins with the first step",
        ),
        ("train train.toml", f"; {RESUME} goes on from the last checkpoint, step_00000"),
        ("sft cold.toml", f"; {RESUME} goes on from the last checkpoint, step_000030"),
        ("eval train.toml", ""),
        ("report run", ""),
        ("compare study.toml", "; the same command goes on with what is left"),
        ("demo --dir nowhere", "; start it again without --resume"),
        ("demo --dir old", "; start it again with --resume"),
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


FORMS = ["--{} 1", "--{}=1", "--{-} 1", "--{-}=1", "{}=1", "--section.{-}=1"]


@pytest.mark.parametrize("form", FORMS)
def test_a_name_of_another_program_leads_to_ours_however_it_is_written(capsys, form):
    """Also names of ours without their section, in which the nearest key has the same name: a share for each form."""
    ours = {name: rf"did you mean (--)?[a-z_]+\.{name}\?" for name in (key.partition(".")[2] for key in all_keys())}
    ours = dict(list(ours.items())[FORMS.index(form) :: len(FORMS)])
    wanted = {name: re.escape(f"what other programs call {name} is {key} here") for name, key in ELSEWHERE.items()} | ours
    wanted["lr"] = r"did you mean (--)?optimizer\.lr\?"
    for name, answer in wanted.items():
        words = form.replace("{-}", name.replace("_", "-")).replace("{}", name).split()
        assert main(["config", *words] if "section" in form else ["train", "none.toml", *words]) == 2
        said = capsys.readouterr().err
        assert re.search(answer, said), (words, said)
