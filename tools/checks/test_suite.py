"""What chooses, runs and measures the tests: shares, workers that die or hang, budgets, the parts of a day."""

import signal
import subprocess
import sys
from collections import deque
from functools import partial
from pathlib import Path

import pytest

from tools.suite import choice, parts, plugin, table, workers
from tools.suite.processor import active, descendants, processor_seconds

ROOT = Path(__file__).parents[2]
TESTS = """
import os, pytest

@pytest.fixture(scope="module")
def shared():
    return sum(range(3_000_000))

def test_passes(shared, tmp_path): print("said")
def test_fails():
    assert 1 == 2
def test_dies(): os.kill(os.getpid(), 9)
def test_after_it(): pass
@pytest.mark.skipif(True, reason="not here")
def test_skipped(): pass
@pytest.mark.parametrize("i", range(20))
def test_many(i, shared): assert i != 7
def test_subtests(subtests):
    for i in range(4):
        with subtests.test(i=i):
            assert i % 2
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_forked_workers_report_what_one_process_does(tmp_path, workers):
    for name in ("test_a", "test_b"):
        text = TESTS if workers != "0" else TESTS.replace("os.kill(os.getpid(), 9)", "assert 0")
        (tmp_path / f"{name}.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tools.suite.plugin", "--workers", workers, "-rs"]
    ended = subprocess.run([*words, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    out = ended.stdout
    # Of each file fail: test_fails, test_dies, one of many, two subtests, and the test of these.
    assert ended.returncode == 1 and "12 failed, 42 passed, 2 skipped" in out, out
    assert out.count("E       assert 1 == 2") == 2 and out.count("not here") == 2, out
    assert ("ended with -9" in out) == (workers == "2")
    assert "processor seconds" in out and "in all" in out
    assert ended.stderr.count("FAILED ") == 12 and "FAILED test_a.py::test_fails" in ended.stderr, ended.stderr


def test_an_error_while_collecting_and_ctrl_c_end_it(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_one(): pass")
    (tmp_path / "test_b.py").write_text("import nothing_of_this_name")
    words = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tools.suite.plugin", "--workers", "2", str(tmp_path)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2 and "nothing_of_this_name" in ended.stdout
    (tmp_path / "test_b.py").write_text("import os, signal\ndef test_two(): os.kill(os.getppid(), signal.SIGINT)")
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, preexec_fn=heard)
    assert ended.returncode == 2 and "KeyboardInterrupt" in ended.stdout


@pytest.mark.parametrize("seen, hangs", [([0] * 9, False), ([0] * 10, True), ([1] + [0] * 9, False), ([1] + [0] * 10, True)])
def test_a_test_hangs_where_nothing_of_it_runs(monkeypatch, seen, hangs):
    monkeypatch.setattr(workers, "HANGS", 10)
    looks = iter(seen)
    monkeypatch.setattr(workers, "active", lambda pid: next(looks))
    worker = workers.Worker.__new__(workers.Worker)
    worker.pid, worker.looks, worker.looked = 0, deque(maxlen=10), 0.0
    monkeypatch.setattr(workers, "LOOK", -1.0)
    assert [worker.hangs() for _ in seen][-1] is hangs


def test_what_a_child_of_a_child_takes_is_counted():
    work = "sum(range(20_000_000))"
    outer = f"import subprocess, sys; {work}; subprocess.run([sys.executable, '-c', '{work}; input()'])"
    before = processor_seconds()
    process = subprocess.Popen([sys.executable, "-c", outer], stdin=subprocess.PIPE)
    try:
        while processor_seconds() - before < 0.3:
            assert process.poll() is None
        while active(process.pid):
            pass
        assert len(descendants(process.pid)) == 1
    finally:
        process.communicate(b"\n")
    assert processor_seconds() - before > 0.3 and descendants(process.pid) == []


def test_shares_are_the_whole_and_take_about_the_same_time(monkeypatch):
    entries = {f"f{i}.py::test": table.Entry(i, float(i), 1) for i in range(40)}
    monkeypatch.setattr(choice, "measured", lambda: entries)
    names = [f"tests/f{i}.py::test[{k}]" for i in range(40) for k in range(2)]
    every = [choice.share(names, f"{k}/4") for k in range(4)]
    assert sum(map(len, every)) == len(names) == len(set().union(*every))
    sums = [sum(map(choice.seconds, one)) for one in every]
    assert max(sums) < 1.05 * min(sums) and choice.share(names, "5/4") == every[1]
    for wanted in ("yes", "-1/8", "1/", "1/0", "1"):
        with pytest.raises(pytest.UsageError, match="give K/N"):
            choice.share(names, wanted)


def test_the_core_is_what_is_short_and_the_guards(monkeypatch):
    entries = {"a/test_x.py::test_long": table.Entry(2.0, 4.0, 2), "a/test_x.py::test_short": table.Entry(0.7, 9.0, 20)}
    monkeypatch.setattr(choice, "measured", lambda: entries)
    monkeypatch.setattr(choice, "core", lambda: {"guards": {"a/test_x.py::test_long[7]": "why"}, "rest": {"[bwrap": "why"}})
    assert choice.in_core("tests/a/test_x.py::test_long[7]") and not choice.in_core("tests/a/test_x.py::test_long[8]")
    assert choice.in_core("tests/a/test_x.py::test_short[1]") and choice.in_core("tests/a/test_new.py::test_new")
    assert not choice.in_core("tests/a/test_x.py::test_short[bwrap-1]")


def test_the_table_is_read_as_it_was_written(tmp_path):
    entries = {"b.py::test": table.Entry(1.5, 3.0, 2), "a.py::test_quick": table.Entry(0.1, 10.0, 99)}
    table.write(entries, tmp_path / "seconds.txt")
    (found,) = table.read(tmp_path / "seconds.txt").items()
    assert found[0] == "b.py::test" and vars(found[1]) == {"most": 1.5, "total": 3.0, "cases": 2}


def test_guards_and_budgets_are_of_tests_that_there_are():
    core = choice.core()
    for name in core["guards"]:
        file, _, function = name.partition("[")[0].partition("::")
        assert f"def {function}(" in (ROOT / "tests" / file).read_text(), name
    assert all((ROOT / "tests" / folder).is_dir() for folder in core["budget"])
    for name in choice.measured():
        file, _, function = name.partition("::")
        path = ROOT / "tests" / file
        assert path.exists() and f"def {function.rpartition('::')[2]}(" in path.read_text(), f"tests/seconds.txt: {name}"


def test_more_than_the_core_may_take_is_named(monkeypatch):
    meter = plugin.Meter()
    meter.note("tests/a/test_x.py::test_y[1]", 2.8, 4.0, plugin.USUAL)
    meter.note("tests/a/test_x.py::test_z", 0.5, 0.0, plugin.USUAL)
    monkeypatch.setattr(choice, "core", lambda: {"guards": {}, "rest": {}, "budget": {"a": 8}})
    (line,) = plugin.over(meter, meter.slowness)
    assert "test_y[1] took 2.8 processor seconds" in line
    monkeypatch.setattr(choice, "core", lambda: {"guards": {"a/test_x.py::test_y": "why"}, "rest": {}, "budget": {"a": 5}})
    (line,) = plugin.over(meter, meter.slowness)
    assert line == "tests/a took 7 processor seconds of 5 (tests/core.toml)"
    assert [*plugin.over(meter, 2.0)] == []  # a machine that is half as fast


def test_a_day_has_one_environment_and_a_change_its_own_as_far_as_they_fit():
    count = len(parts.ENVIRONMENTS)
    names = [parts.of_day(day, ["README.md"]) for day in range(2 * count)]
    assert {name for (name,), _ in names} == {*parts.ENVIRONMENTS} and names[:count] == names[count:]
    for day in range(count):  # two of 25 minutes are more than the 30 that there are
        taken, left = parts.of_day(day, ["src/gspo/backends/vllm/server.py"])
        assert sorted(taken + left) == ["vllm, first half", "vllm, second half"] and len(taken) == 1
        taken, left = parts.of_day(day, ["src/gspo/launch/ray_launch.py", "src/gspo/eval/run.py"])
        assert sorted(taken) == ["ray", "verifiers and benchmarks"] and not left
    for minutes, _, paths in parts.ENVIRONMENTS.values():
        assert minutes <= parts.LIMIT
        for path in paths:  # each names something
            assert [*ROOT.glob(f"{path}*")] or path.endswith("/"), path


def test_each_environment_says_what_it_must_have():
    """Otherwise a library that is missing skips its tests, and nothing is tested."""
    makefile = (ROOT / "Makefile").read_text()
    lines = [line for line in makefile.splitlines() if "-m pytest" in line and ".venv-" in line.partition("-m pytest")[0]]
    assert len(lines) >= 4 and all("GSPO_REQUIRE=" in line for line in lines if "GSPO_VLLM_PYTHON" not in line), lines


ONLY_FIRST = """
import time
from tools.suite import plugin

plugin.CASE, plugin.standard_work, done = 0.1, lambda: plugin.USUAL, []

def burn():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass

def test_first():
    done or burn()
    done.append(1)

def test_always():
    burn()
"""


def test_a_case_that_only_came_first_is_no_offence(tmp_path):
    """It is run again, and what it does then counts."""
    (tmp_path / "test_a.py").write_text(ONLY_FIRST)
    words = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "tools.suite.plugin", "--part", "core", str(tmp_path)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1 and "2 passed" in ended.stdout, ended.stdout
    assert "test_always took" in ended.stdout and "test_first took" not in ended.stdout
