"""Functions to write, and their tests."""

import json

from gspo.config.rewards import CodeConfig
from gspo.recipes import programs
from gspo.rewards.code import CodeReward


def test_tests_of_programs_tell_all_tasks_apart():
    seen = {}
    for row, (text, *_) in zip(programs.rows(programs.tasks()), programs.tasks()):
        assert json.loads(json.dumps(row)) == row
        assert seen.setdefault(json.dumps(row["tests"]), text) == text
    assert len(seen) == len(programs.tasks())
    held_out = {row["prompt"] for row in programs.held_out()}
    assert len(held_out) == 48 and held_out.isdisjoint(row["prompt"] for row in programs.training())


def test_programs_are_graded():
    row = next(row for row in programs.rows(programs.tasks()) if "x times 3." in row["prompt"])
    grade = CodeReward(CodeConfig())
    assert grade("```python\ndef f(x):\n    return x * 3\n```\n", row) == 1
    assert grade("```python\ndef f(x):\n    return x + 6\n```\n", row) == 0  # right for x = 3
