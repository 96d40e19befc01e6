import pytest

from gspo.data.benchmarks.humaneval import humaneval_row

ROW = {
    "task_id": "HumanEval/0", "prompt": "def one():\n    \"\"\"Return 1.\"\"\"\n", "entry_point": "one",
    "canonical_solution": "    return 1\n", "test": "def check(candidate):\n    assert candidate() == 1\n",
}  # fmt: skip


def test_a_problem():
    row = humaneval_row(ROW, 0)
    assert (row["id"], row["function"], row["canonical"]) == ("HumanEval/0", "one", "    return 1\n")
    assert "def one():" in row["prompt"] and "answer" not in row


def test_another_schema_is_refused():
    for name in ROW:
        with pytest.raises(ValueError, match=f"there is no {name}"):
            humaneval_row({key: value for key, value in ROW.items() if key != name}, 0)
    with pytest.raises(ValueError, match=r"there are no tests: .* in test"):
        humaneval_row(ROW | {"test": "pass"}, 0)
