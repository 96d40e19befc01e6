"""Which training prompts a benchmark knows: 8 words in a row, whatever their case and punctuation."""

import json
import warnings

import pytest

from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.data.chat_template import Encoder
from gspo.data.overlap import Overlap, grams
from gspo.data.prompts import load_prompts
from tests.data.tools import characters

PROBLEM = "Find the number of ordered pairs (a, b) of positive integers such that a + b = 12."


@pytest.fixture
def aime(tmp_path):
    path = tmp_path / "aime.jsonl"
    path.write_text(
        json.dumps({"problem": PROBLEM, "answer": "11"}) + "\n" + json.dumps({"problem": "What is 2 + 2?"}) + "\n"
    )
    return str(path)


def test_grams_by_hand():
    assert list(grams("One, two THREE")) == [("one", "two", "three")]
    assert [" ".join(gram) for gram in grams("a b c d e f g h i")] == ["a b c d e f g h", "b c d e f g h i"]
    assert list(grams(" ... ")) == []


@pytest.mark.parametrize(
    ("prompt", "known"),
    [
        (PROBLEM, True),
        ("Warm-up: FIND the number of ordered pairs a b of -- then stop", True),
        ([{"role": "user", "content": f"Solve it. {PROBLEM}"}], True),
        ([{"role": "user", "content": [{"type": "text", "text": PROBLEM}]}], True),
        ("find the number of ordered pairs a c of integers", False),  # seven in a row
        ("what is 2 2", True),  # all of a short one
        ("tell me what is 2 2", False),
        ("", False),
    ],
)
def test_what_is_known(aime, prompt, known):
    assert bool(Overlap([aime]).found(prompt)) == known


def test_lines_of_text_and_rows_with_the_tasks_own_column(tmp_path):
    (tmp_path / "b.txt").write_text(f"{PROBLEM}\n\n")
    (tmp_path / "b.json").write_text(json.dumps([{"ask": PROBLEM, "prompt": "other"}]))
    assert Overlap([str(tmp_path / "b.txt")]).found(PROBLEM).endswith("b.txt")
    assert Overlap([str(tmp_path / "b.json")], "ask").found(PROBLEM) and not Overlap([str(tmp_path / "b.json")]).found(
        PROBLEM
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.jsonl", None, r"task.benchmarks\[0\] = .*there is no such file"),
        ("gone.txt", None, r"task.benchmarks\[0\] = .*cannot be read"),
        ("b.pkl", "x", r"task.benchmarks\[0\] = .*expected a file with one prompt a line"),
        ("b.txt", "\n \n", r"task.benchmarks\[0\] = .*holds no prompts"),
        ("b.jsonl", '{"answer": 3}', r"task.benchmarks\[0\] = .*row 0: there is no column 'prompt'"),
        ("b.jsonl", '{"prompt": 3}', r"task.benchmarks\[0\] = .*row 0: is an int"),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        Overlap([str(tmp_path / name)])


def test_such_rows_are_left_out_and_told(aime):
    rows = [{"prompt": text} for text in ("ab", PROBLEM, "ba", "What is 2+2")]
    encoder = Encoder(characters(), task := TaskConfig(source="rows", benchmarks=[aime]))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        prompts, _ = load_prompts(task, EvalConfig(num_prompts=0), encoder, rows=rows)
    assert [prompt.id for prompt in prompts] == ["train-0", "train-2"]
    (text,) = [str(one.message) for one in heard]
    assert "2 rows left out of training: they share 8 words" in text and "train-1 in " in text
    with pytest.raises(ValueError, match="no row is left to train on: benchmarks know its prompts"):
        load_prompts(task, EvalConfig(num_prompts=0), encoder, rows=[{"prompt": PROBLEM}])
