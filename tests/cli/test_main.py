"""The command line: help, and whole runs through files."""

import os
import subprocess
import sys

import pytest
import torch

import gspo
from gspo.cli.main import main
from gspo.config.names import ELSEWHERE
from gspo.distributed.environment import LOST
from gspo.distributed.ranks import RankLost
from tests.cli.whole import TRAIN
from tests.patience import PATIENCE
from tests.tiny_run import model

COMMANDS = ["train", "sft", "eval", "report", "demo", "config", "recipes"]


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


def test_help_imports_nothing_heavy(tmp_path):
    """So that it answers at once; a bad configuration, or a model that is not here, is told as fast."""
    script = """
import sys
from gspo.cli.main import main
for words in (["--help"], ["train", "--help"]):
    try:
        main(words)
    except SystemExit as stopped:
        assert stopped.code == 0
for words in ("train missing.toml", "train run.toml --algorithm.epsilon=0.1", "train run.toml --rollout.num_prompts=7"):
    assert main(words.split()) == 2
assert main(["config", "--model.path=nobody/has-it"]) == 0
heavy = {"torch", "transformers", "numpy", "datasets", "rich", "reasoning_gym", "gspo.api"} & set(sys.modules)
assert not heavy, heavy
import gc
from gspo.launch.processes import importing
with importing():
    import gspo.assembly.rank, gspo.api
assert gc.isenabled()
"""
    (tmp_path / "run.toml").write_text('model.path = "m"\ntask.source = "a.jsonl"\nreward.functions = ["exact"]\n')
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "COMMAND" in ended.stdout and ended.stderr.count("gspo: error: ") == 3


WITHOUT = """
import sys
sys.modules["torch"] = None
from gspo.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "words",
    [
        "train train.toml --log.dir=new", "sft cold.toml --log.dir=new", "eval train.toml", "plan train.toml",
        "serve --model model --log.dir=new", "eval model --benchmark rows.jsonl", "export run", "demo",
    ],
)  # fmt: skip
def test_what_takes_long_is_said_before_it_begins(place, words):
    """Here the imports fail: whatever was written came before them."""
    command = [sys.executable, "-c", WITHOUT, *words.split()]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=place)
    first, *_, last = ended.stderr.splitlines()
    assert first == "gspo: loading torch and transformers" and last.startswith("ModuleNotFoundError")


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


def test_too_little_memory_is_an_error_with_a_remedy(tmp_path, monkeypatch, capsys):
    def fails(**_):
        raise MemoryError("Unable to allocate 9.00 TiB")

    monkeypatch.setattr("gspo.api.train", fails)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "run.toml").write_text('task.source = "rows.jsonl"\n[model]\npath = "there"\n')
    assert main(["train", str(tmp_path / "run.toml"), "--log.dir", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "out of memory (Unable to allocate 9.00 TiB)" in error and "--resume" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "error, status, said",
    [
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error\nmore"), LOST, "the GPU failed (CUDA error"),
        (torch.AcceleratorError("CUDA error: no kernel image is available\nmore"), 1, "error: CUDA error: no kernel"),
        (RankLost("rank 1: another rank is gone"), LOST, "rank 1: another rank is gone"),
    ],
)
def test_ranks_start_again_after_what_another_process_may_not_meet(tmp_path, monkeypatch, capsys, error, status, said):
    def fails(**_):
        raise error

    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("gspo.api.train", fails)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / "run.toml").write_text('task.source = "rows.jsonl"\n[model]\npath = "there"\n')
    for more in ([], ["--debug"]):
        assert main(["train", "run.toml", "--log.dir=run", *more]) == status
        shown = capsys.readouterr().err
        assert said in shown and "more" not in shown.splitlines()[-1] and ("Traceback" in shown) == bool(more)


def test_files_beside_the_data_are_not_taken_for_modules(tmp_path):
    """A whole run by `python -m`, whose rows and reward are files of its folder."""
    for name in ("pickle", "random", "csv", "http", "numpy", "torch", "peft", "pyarrow", "sitecustomize", "mpmath"):
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
    for command, status in (("config", 0), ("report run --quiet", 0), ("train missing.toml", 2)):
        words = f"exec {sys.executable} -m gspo {command} >&-"
        ended = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, cwd=place, text=True, timeout=PATIENCE)
        assert ended.returncode == status, ended.stderr
        assert ended.stderr == ("" if status == 0 else "gspo: error: missing.toml: no such configuration file\n")


FORMS = [f"train recipe:smollm2-words {form}" for form in ("--{} 1", "--{-}=1", "{}=1")] + ["config --section.{-}=1"]


@pytest.mark.parametrize("form", FORMS)
def test_a_name_of_another_program_leads_to_ours_however_it_is_written(capsys, form):
    """A share of the names for each form."""
    wanted = [*ELSEWHERE.items(), ("lr", "optimizer.lr"), ("num_generations", "rollout.num_generations")]
    for name, answer in wanted[FORMS.index(form) :: len(FORMS)]:
        assert main(form.replace("{-}", name.replace("_", "-")).replace("{}", name).split()) == 2
        assert answer in capsys.readouterr().err, (form, name)
