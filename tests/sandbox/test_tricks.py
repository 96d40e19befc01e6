"""No trick makes a wrong answer right, uses up the machine, or spoils the next test; and no honest program is refused."""

import os
import resource
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from gspo.rewards.code import CodeTest, same_stdout
from gspo.sandbox.types import Case, Limits, Program
from tests.sandbox.boxes import in_time
from tests.sandbox.tricks import CHEAT, EXHAUST, HONEST, SURVIVE

TIGHT = Limits(seconds=0.5, memory=1 << 28, output=100_000, scratch=8 << 20, threads=16)


@pytest.mark.parametrize("name", CHEAT)
def test_no_trick_makes_an_answer_right(box, name):
    program = Program(CHEAT[name], function="f")
    (outcome,) = box.run(program, [Case(arguments=[])], TIGHT)
    for expected in (48151623, "48151623", [48151623], {"a": 48151623}):
        assert not CodeTest(Case(arguments=[]), expected).passed(outcome), outcome
    assert type(outcome.value) in (type(None), bool, int, float, str, list, tuple, set, dict)


@pytest.mark.parametrize("name", EXHAUST)
def test_nothing_is_used_up(box, name):
    source, words = EXHAUST[name]
    program = Program(f"if input() == 'attack':\n exec({source!r})\nelse: print('well')")
    first, second = box.run(program, [Case("attack"), Case("x")], in_time(TIGHT, words))
    if not (box.driver == "landlock" and name in ("a full folder", "a large file", "empty files", "folders")):
        assert first.status in words.split("|"), first
    assert first.seconds < 10
    assert second.stdout == "well\n", second


@pytest.mark.parametrize("name", SURVIVE)
def test_the_next_test_is_run_as_ever(box, name):
    body = "".join(f" {line}\n" for line in SURVIVE[name].splitlines())
    source = f"import ctypes, os, signal, sys\nif input() == 'attack':\n{body}else: print('well')"
    outcomes = box.run(Program(source), [Case(text) for text in ("attack", "x", "attack", "x")], in_time(TIGHT, ""))
    assert [outcome.stdout for outcome in outcomes[1::2]] == ["well\n"] * 2, outcomes
    assert [outcome.status for outcome in outcomes[1::2]] == ["ok"] * 2, outcomes


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_are_run_as_they_are(box, name):
    source, entry, expected = HONEST[name]
    (outcome,) = box.run(Program(source), [Case(entry)])
    wanted = "\n".join(map(str, range(300_000))) if expected is None else expected
    assert outcome.status == "ok" and same_stdout(outcome.stdout, wanted), outcome


def test_a_verdict_does_not_depend_on_load(box):
    source = "x = 0\nfor i in range(3_000_000): x += i\nprint(x)"
    alone = box.run(Program(source), [Case("")])[0].seconds
    done = threading.Event()

    def burn():
        while not done.is_set():
            sum(range(100_000))

    for _ in range(2 * (os.cpu_count() or 1)):
        threading.Thread(target=burn).start()
    with ThreadPoolExecutor(4) as lanes:
        run = partial(box.run, Program(source), [Case("")], Limits(seconds=4 * alone + 0.2))
        outcomes = [lane.result() for lane in [lanes.submit(run) for _ in range(4)]]
    done.set()
    assert [outcome.status for (outcome,) in outcomes] == ["ok"] * 4


def test_nothing_is_left_of_many_replies(box):
    box.run(Program("print(1)"), [Case("")])
    before = _left()
    for i in range(20):
        body = ("print(1)", "while True: pass", "import os; os.kill(os.getpid(), 9)", "x = bytearray(1 << 31)")[i % 4]
        box.run(Program(body), [Case("")] * 2, Limits(seconds=0.1, memory=1 << 28))
    after = _left()
    assert after[:2] == before[:2] and after[2] < before[2] + 20_000


def _left():
    """Descriptors, folders of sandboxes, and KiB of memory of this process."""
    folders = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(f"gspo-scratch-{os.getpid()}-")]
    return len(os.listdir("/proc/self/fd")), folders, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
