import json

import pytest

from gspo.config.rollout import TaskConfig
from gspo.data import loaders
from gspo.workers.processes import Process
from tests.data.rows import ROWS, datasets, load, write
from tests.logged import logs
from tests.patience import PATIENCE


def test_a_function_of_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "own_task_module.py").write_text(
        "def rows(n, word='w'):\n    return [{'prompt': f'{word}{i}'} for i in range(n)]\n"
        "def leaves():\n    import sys\n    sys.exit(0)\n"
    )
    monkeypatch.chdir(tmp_path)
    source = "own_task_module:rows"
    train, held_out = load(source, config={"n": 20, "word": "v"})
    assert [train[0].messages, len(train), len(held_out)] == ["v0", 18, 2]
    for bad, config, message in [  # others are in tests/test_bad_input.py
        (source, {"n": 2, "wrd": 1}, "cannot be called with it: got an unexpected keyword argument 'wrd'"),
        ("own_task_module:leaves", {}, "own_task_module:leaves raised SystemExit: 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(bad, config=config)


@pytest.mark.parametrize(
    ("does", "why"), [("os._exit(3)", "died .exit status 3."), ("time.sleep(1000)", "sent none for 1 s")]
)
def test_a_process_that_makes_no_items(tmp_path, monkeypatch, does, why):
    (tmp_path / "odd_maker.py").write_text(
        f"import os, sys, time\nfrom gspo.workers.processes import opened\nconnection = opened(sys.argv[1])\n{does}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loaders, "Process", lambda module, request: Process("odd_maker", request))
    monkeypatch.setattr(loaders, "SILENCE", 1.0 if "sleep" in does else PATIENCE)
    with pytest.raises(RuntimeError, match=f"reasoning_gym:gcd: the process that makes its items {why}"):
        loaders.generate("reasoning_gym:gcd", TaskConfig(), 2, 1)


def test_a_hugging_face_data_set(tmp_path, monkeypatch):
    """The loading path of an id, on a local folder: there is no network in tests."""
    (tmp_path / "own_set").mkdir()
    write(tmp_path / "own_set" / "train.jsonl", ROWS)
    write(tmp_path / "own_set" / "test.jsonl", [{"prompt": "x", "answer": 1, "completion": "1"}])
    monkeypatch.chdir(tmp_path)
    train, held_out = load("./own_set", eval_split="test")
    assert [len(train), [p.messages for p in held_out]] == [40, ["x"]]
    with pytest.raises(ValueError, match=r"no data set could be loaded with split = 'dev'.*Unknown split"):
        load("./own_set", split="dev")
    with pytest.raises(
        ValueError, match=r"eval_source = './own_set': .*; task.config is for task.source too: give rows that"
    ):
        load("./own_set", eval_source="./own_set", eval_split="dev", config={"data_files": {"train": "train.jsonl"}})


def test_bad_files(tmp_path, subtests):
    for name, content, message in (  # others are in tests/test_bad_input.py
        ("a.jsonl", '{"prompt": "x"}\n\0', "a.jsonl, line 2: not valid JSON"),
        ("a.json", '[{"prompt": "x"}, 3]', "a.json, row 1: expected an object .*, got 3"),
        ("a.json", '[{"prompt": "x"},\n{"prompt" 3}]', "a.json, line 2: not valid JSON: Expecting ':' delimiter"),
        ("a.json", '{"prompt": "x"}\n{"prompt"\n', "a.json, line 2: not valid JSON: Expecting ':' delimiter"),
        ("a.json", '{"rows": [\n{"prompt" 3}\n]}', "a.json, line 2: not valid JSON: Expecting ':' delimiter"),
        ("a.csv", "prompt,answer\nx,1,2\n", "a.csv, line 2: expected 2 fields"),
        ("a.csv", "prompt,answer,answer\nx,1,2\n", "a.csv, line 1: two columns are called 'answer'"),
        ("a.jsnl", "{}", r"files can be .*, not \.jsnl"),
    ):
        (tmp_path / name).write_text(content)
        with subtests.test(message), pytest.raises(ValueError, match=message):
            load(tmp_path / name)
    with pytest.raises(ValueError, match=r"task\.source is required"):
        load()


def test_a_json_file_is_a_list_of_rows_or_lines(tmp_path):
    for name, text in (("list.json", json.dumps(ROWS, indent=1)), ("lines.json", "\n".join(map(json.dumps, ROWS)))):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        train, held_out = load(tmp_path / name)
        assert [len(train), len(held_out), train[3].columns] == [36, 4, {"answer": 4, "completion": "4"}]


def test_a_long_cell_of_a_csv_file_is_read(tmp_path):
    (tmp_path / "a.csv").write_text(f"prompt,answer\n{'x' * 200_000},1\n")
    assert len(load(tmp_path / "a.csv")[0][0].messages) == 200_000


def test_a_folder_that_datasets_saved(tmp_path):
    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=rows, test=rows.select([0, 1])).save_to_disk(tmp_path / "several")
    assert [len(part) for part in load(tmp_path / "one")] == [36, 4]
    with logs(match="2 rows left out of training"):
        train, held_out = load(tmp_path / "several", eval_split="test")
    assert [len(train), [p.messages for p in held_out]] == [38, ["0+1=", "1+1="]]
    for folder, split, message in (
        ("one", "test", "one'.*: has no splits, so 'test' is none of them"),
        ("several", "tset", "several'.*: has no split 'tset', did you mean test.*; its splits are train, test"),
    ):
        with pytest.raises(ValueError, match=message):
            load(tmp_path / folder, split=split)
    (tmp_path / "one" / "state.json").write_text("{")
    with pytest.raises(ValueError, match="the saved data set cannot be read"):
        load(tmp_path / "one")
