import dataclasses
import datetime
import decimal
import json

import numpy
import pytest

from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.data.splits import check_columns, plain, prompt_column, read_tables
from tests.data.rows import ROWS, load

NEEDS = {"answer": "reward.answer_column"}


def test_held_out_rows_of_the_same_file_are_cut_from_it(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    task = TaskConfig(source=f"{tmp_path}/rows.jsonl", eval_source=f"{tmp_path}/./rows.jsonl")
    assert [len(part) for part in read_tables(task, EvalConfig(num_prompts=3))] == [37, 3]


def test_columns_are_looked_for_before_any_model_is():
    for rows, eval_rows, message in (
        (ROWS, [{"prompt": "x"}], "the held-out data set, row 0: there is no column 'answer'"),
        (["x"], None, 'row 0: is a str, expected a dict of columns, such as {"prompt": "..."}'),
    ):
        with pytest.raises(ValueError, match=message):
            check_columns(read_tables(TaskConfig(), EvalConfig(), rows, eval_rows), TaskConfig(), NEEDS)


def test_held_out_rows_of_another_kind_have_their_own_options_and_columns(tmp_path, monkeypatch):
    """A training set with options and a nested answer, evaluated on a file, a function or a benchmark."""
    rows = "[{'question': f'{name} {i}', 'reward_model': {'ground_truth': i}} for i in range(3)]"
    (tmp_path / "made_rows.py").write_text(f"def make(name):\n    return {rows}\n\ndef other(word):\n    return []\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, column in (("file", "reward_model"), ("problems", "answer")):
        answer = {"reward_model": {"ground_truth": 1}, "answer": 1}[column]
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": "?", "problem": "?", column: answer}))
    for eval_source in (f"{tmp_path}/file.jsonl", f"benchmark:{tmp_path}/problems.jsonl"):
        task = TaskConfig("made_rows:make", config={"name": "main"}, eval_source=eval_source, prompt_column="question")
        tables = read_tables(task, EvalConfig())
        check_columns(tables, task, {"reward_model.ground_truth": "reward.answer_column"})
        assert [len(part) for part in tables] == [3, 1]
    beside_a_file = dataclasses.replace(task, source=f"{tmp_path}/file.jsonl", eval_source="made_rows:make")
    assert [len(part) for part in read_tables(beside_a_file, EvalConfig())] == [1, 3]
    other = dataclasses.replace(task, eval_source="made_rows:other")
    with pytest.raises(ValueError, match="made_rows:other cannot be called with it"):
        read_tables(other, EvalConfig())


def test_the_column_of_the_prompt():
    task = TaskConfig(source="reasoning_gym:gcd", eval_source="rows.jsonl", prompt_column="text")
    assert prompt_column("train", task) == "question" and prompt_column("eval", task) == "text"


def test_cells_become_plain_data():
    at = datetime.datetime(2026, 11, 22, 1, 2, 3)
    row = {
        "at": at, "day": at.date(), "time": at.time(), "took": datetime.timedelta(seconds=90),
        "price": decimal.Decimal("1.10"), "array": numpy.arange(2), "number": numpy.float32(0.5), "nested": {"at": [at]},
        "text": "x",
    }  # fmt: skip
    expected = {
        "at": "2026-11-22T01:02:03", "day": "2026-11-22", "time": "01:02:03", "took": 90.0, "price": "1.10", "array": [0, 1],
        "number": 0.5, "nested": {"at": ["2026-11-22T01:02:03"]}, "text": "x",
    }  # fmt: skip
    assert plain(row) == expected
    train, _ = load(rows=[{"prompt": "x"} | row])
    assert json.loads(json.dumps(train[0].columns)) == expected
