"""Every slow test belongs to one share, whatever the day is called, and has a shorter one of its kind that is always run."""

import ast
from pathlib import Path

import pytest

from tests.slow import runs

HERE = Path(__file__).parent
# A real engine is slow to start. The shorter ones of their kind are in another file: with an engine, or with its stand-in.
ELSEWHERE = {
    "backends/vllm/engine/test_episodes.py": "rollout/test_asynchronous_episodes.py",
    "backends/vllm/engine/test_killed_ranks.py": "backends/vllm/engine/test_ray.py",
    "backends/vllm/engine/test_ranks.py": "backends/vllm/engine/test_ray.py",
}

NAMES = [f"tests/test_x.py::test[{i}]" for i in range(200)]


def test_all_or_none():
    assert all(runs(name, "1") for name in NAMES)
    assert not any(runs(name, wanted) for name in NAMES for wanted in ("", "0"))


def test_shares_are_the_whole():
    every = [{name for name in NAMES if runs(name, f"{k}/8")} for k in range(8)]
    assert sum(map(len, every)) == len(NAMES) == len(set().union(*every)) and min(map(len, every)) > 10
    assert every[1] == {name for name in NAMES if runs(name, "009/8")}


@pytest.mark.parametrize("wanted", ["yes", "1/0", "-1/8", "1/", "all"])
def test_bad_values_are_refused(wanted):
    with pytest.raises(pytest.UsageError, match="give 1 for all slow tests"):
        runs(NAMES[0], wanted)


def slow_and_not(path):
    """The numbers of a file's tests that are marked slow, and of those that are always run. One of whose cases some are
    marked is always run.
    """
    nodes = ast.parse(path.read_text()).body
    tests = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    slow = sum(any(ast.unparse(mark) == "pytest.mark.slow" for mark in test.decorator_list) for test in tests)
    return slow, len(tests) - slow


def test_a_file_with_slow_tests_has_others_that_are_always_run():
    every = {path.relative_to(HERE).as_posix(): slow_and_not(path) for path in HERE.rglob("test_*.py")}
    assert sum(slow > 0 for slow, _ in every.values()) > 15
    assert {name for name, (slow, always) in every.items() if slow and not always} == {*ELSEWHERE}
    assert all(every[name][1] for name in ELSEWHERE.values())
