"""gspo eval on held-out prompts; tests/eval has benchmarks."""

from gspo.cli.main import main
from gspo.config.source_kind import GIVEN
from tests.training.whole import lines


def test_eval_prints_an_interval_and_writes_each_completion(place, monkeypatch, capsys):
    completions = lines(place / "out" / "completions.jsonl")
    assert len(completions) == 8 * 3
    assert {"prompt_id", "prompt", "completion", "reward", "reward_parts", "stop", "error"} <= set(completions[0])
    assert len({completion["prompt_id"] for completion in completions}) == 8
    monkeypatch.chdir(place)
    assert main(["eval", "train.toml", "--model.path=run/model", "--eval.num_generations=3"]) == 0
    shown = capsys.readouterr().out
    mean = sum(completion["reward"] for completion in completions) / len(completions)
    assert shown.startswith(
        f"evaluating 24 completions\nmodel run/model, at temperature 1\naccuracy {mean:.4f}  (95 % interval "
    )
    assert mean > 0.1 and "not scored" not in shown
    assert main(["eval", "train.toml", "--model.path=run/model", "--optimizer.lr=1"]) == 2
    assert "--optimizer.lr: has no effect on `gspo eval`" in capsys.readouterr().err


def test_rows_of_a_task_are_a_field_and_those_of_a_python_call_are_gone(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for words, message in (
        (
            ["--data=rows.jsonl"],
            "--data: is for a benchmark: name one with --benchmark, or give a task's rows as --task.eval_source",
        ),
        ([f"--task.source={GIVEN}"], "use gspo.evaluate, or set --task.source and --reward.functions to module:function"),
    ):
        assert main(["eval", "train.toml", *words]) == 2
        assert message in capsys.readouterr().err


def test_a_file_for_the_completions_is_opened_before_they_are_sampled(place, monkeypatch, capsys):
    """And does not stay, empty, if they do not come; the metrics come first, so that a full disk takes no evaluation."""
    monkeypatch.chdir(place)
    (place / "broken_grader.py").write_text("def broken(prompts, completions): raise OSError('no such judge')\n")
    words = ["eval", "train.toml", "--model.path=run/model"]
    fails = "--reward.functions=broken_grader:broken"
    for out, why in (("rows.jsonl", "exists already"), ("rows.jsonl/a", "cannot be"), ("/proc/a", "cannot be written")):
        assert main([*words, f"--out={out}", fails]) == 2
        assert f"--out {out}: {why}" in capsys.readouterr().err
    assert main([*words, "--out=not/made.jsonl", fails]) == 1
    assert "no such judge" in capsys.readouterr().err and not list((place / "not").iterdir())

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("gspo.runs.log.to_json", full)
    assert main([*words, "--out=not/made.jsonl"]) == 1
    assert "\naccuracy " in capsys.readouterr().out


def test_eval_says_how_many_completions_were_not_scored(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    scores = "[None if i % 3 == 0 else 1.0 for i in range(len(completions))]"
    (place / "odd_grader.py").write_text(f"def odd(prompts, completions): return {scores}\n")
    words = ["--model.path=run/model", "--eval.num_generations=3", "--reward.functions=odd_grader:odd"]
    assert main(["eval", "train.toml", *words]) == 0
    shown = capsys.readouterr().out
    assert "accuracy 0.6667  (95 % interval " in shown
    assert shown.splitlines()[2].endswith("; 8 of 24 completions were not scored and count as wrong")


def test_eval_of_a_run_says_which_model_it_takes(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for words, said in (([], True), (["--model.path=run/model"], False)):
        assert main(["eval", "run/config.toml", "--out=rows.jsonl", *words]) == 2  # before it samples
        assert ("the one that it trained: --model.path run/model\n" in capsys.readouterr().err) == said
