"""A sandbox runs programs and gives back plain data, however the programs end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gspo
from gspo.sandbox import drivers, open
from gspo.sandbox.open import Sandbox, open_sandbox
from gspo.sandbox.types import Case, Limits, Outcome, Program
from tests.patience import PATIENCE
from tests.sandbox.boxes import SUM, box_of, compiler, in_time


def test_programs_functions_and_their_outcomes(box):
    first, second = box.run(Program(SUM), [Case("1 2"), Case("3\n4\n")])
    assert (first.status, first.stdout, second.stdout, first.value) == ("ok", "3\n", "7\n", None)
    assert 0 < first.seconds < 1
    (outcome,) = box.run(Program("def f(a, b): return (a + b, {1: 2.5}, {3})", function="f"), [Case(arguments=[1, 2])])
    assert outcome.value == (3, {1: 2.5}, {3}) and outcome.stdout == ""
    method = Program("class Solution:\n    def f(self, a): return a[::-1]", function="f")
    assert [o.value for o in box.run(method, [Case(arguments=["abc"]), Case(arguments=[[1, 2]])])] == ["cba", [2, 1]]


def test_files_and_words_reach_a_checker(box):
    source = "import sys\nprint(open(sys.argv[1]).read() == open('b').read(), sys.argv)"
    case = Case("", words=("a", "x y"), files={"a": "1\n", "b": "1\n"})
    assert box.run(Program(source), [case])[0].stdout == "True ['solution.py', 'a', 'x y']\n"


def test_a_program_that_follows_the_order_of_a_set_says_the_same_each_time():
    source = "print(*{'red', 'green', 'blue', 'grey', 'white'})"
    for driver in ("bwrap", "landlock"):
        said = {box_of(driver).run(Program(source), [Case("")])[0].stdout for _ in range(4)}
        assert len(said) == 1 and "grey" in said.pop()


ENDS = {
    "raise ValueError('no')": ("error", "ValueError: no"),
    "import os; os._exit(3)": ("error", "exit status 3"),
    "import sys; sys.exit(0)": ("ok", ""),
    "exit('bye')": ("error", "bye"),
    "import os; os.abort()": ("error", "ended by SIGABRT"),
    "while True: pass": ("timeout", ""),
    "import time; time.sleep(100)": ("timeout", ""),
    "x = bytearray(10**9)": ("memory", "MemoryError"),
    "print('a' * 10**6)": ("output", ""),
    "def f(:": ("error", "SyntaxError"),
}


@pytest.mark.parametrize("source", ENDS)
def test_each_end_has_its_word(box, source):
    word, detail = ENDS[source]
    limits = in_time(Limits(seconds=0.5, memory=1 << 28, output=100_000), word)
    (outcome,) = box.run(Program(source), [Case("")], limits)
    assert outcome.status == word and detail in outcome.detail


def test_what_is_no_plain_data_is_no_value(box):
    always = "class A:\n    __eq__ = lambda *a: True\n"
    for made in ("A()", "[A()]", "print", "1j", "b'x'"):
        (outcome,) = box.run(Program(f"{always}def f(): return {made}", function="f"), [Case(arguments=[])])
        assert outcome.status == "error" and outcome.value is None and "no plain data" in outcome.detail
    (outcome,) = box.run(Program("import os\ndef f(): os._exit(0)", function="f"), [Case(arguments=[])])
    assert (outcome.status, outcome.detail) == ("error", "it ended before the function returned")
    with pytest.raises(ValueError, match="plain data"):
        box.run(Program(SUM), [Case(arguments=[object()])])


def test_a_stream_that_is_closed_runs_no_further_test(box):
    stream = box.stream(Program(SUM), [Case("1")] * 1000)
    assert next(stream).stdout == "1\n"
    stream.close()
    assert box.run(Program(SUM), []) == []


STOPS = "import os, signal\nif input() == 'stop': os.kill(os.getppid(), signal.SIGSTOP)\nelse: print('well')"


def test_a_runner_that_says_nothing_any_more_is_not_waited_for_again(monkeypatch):
    waits, outcome = [], open._Process.outcome

    def waited(self, seconds, limits):
        waits.append(1)
        return outcome(self, PATIENCE if len(waits) == 1 else 1.0, limits)  # the second says nothing, the first does

    sandbox = open_sandbox("none")  # only there can a program stop it
    monkeypatch.setattr(open._Process, "outcome", waited)
    outcomes = sandbox.run(Program(STOPS), [Case("x"), Case("stop"), Case("x"), Case("x")])
    assert [outcome.status for outcome in outcomes] == ["ok", "error", "error", "error"] and len(waits) == 2
    assert outcomes[-1].detail == "the sandbox ended before the test did"


CPP = "#include <bits/stdc++.h>\nint main() { long a, b; std::cin >> a >> b; std::cout << a * b; }"


@compiler
def test_cpp_compiles_once_and_says_what_is_wrong(box):
    assert [o.stdout for o in box.run(Program(CPP, "cpp"), [Case("3 4"), Case("5 6")])] == ["12", "30"]
    wrong = box.run(Program("int main() { return x; }", "cpp"), [Case(""), Case("")])
    assert [o.status for o in wrong] == ["compile"] * 2 and "main.cpp" in wrong[0].detail
    (outcome,) = box.run(Program("int main() { int *p = 0; return *p; }", "cpp"), [Case("")])
    assert outcome.status == "error" and "SIGSEGV" in outcome.detail
    greedy = Program("#include <vector>\nint main() { std::vector<char> v(1 << 30, 1); return v[5] - 1; }", "cpp")
    assert box.run(greedy, [Case("")], Limits(memory=1 << 28))[0].status == "memory"


def test_where_nothing_works_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(drivers, "bwrap", lambda: None)
    with pytest.raises(RuntimeError, match=r"no sandbox works here .*there is no program bwrap.*apt-get install bubblewrap"):
        open_sandbox("bwrap")


FORBIDDEN = "echo 0 > /proc/sys/user/max_user_namespaces && exec {python} -c '{code}'"
CHOOSE = """
from gspo.sandbox.open import open_sandbox
from gspo.sandbox.types import Case, Program
sandbox = open_sandbox("auto")
print(sandbox.driver, sandbox.run(Program("print(input())"), [Case("as ever")])[0].stdout)
"""


def test_where_user_namespaces_are_forbidden_landlock_takes_over():
    box_of("landlock")
    command = FORBIDDEN.format(python=sys.executable, code=CHOOSE)
    source = str(Path(gspo.__file__).parents[1])
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", command], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": source}
    )
    if done.returncode and done.stderr.startswith(("unshare", "sh: ")):
        pytest.skip(f"no namespace can be made to forbid them in: {done.stderr:.200}")
    assert done.stdout == "landlock as ever\n\n", done.stderr


def test_nothing_is_run_without_a_sandbox_unless_asked(monkeypatch):
    sandbox = open_sandbox("none")
    outcomes = sandbox.run(Program(SUM), [Case("1 2"), Case("x")])
    assert sandbox.driver == "none" and [o.status for o in outcomes] == ["ok", "error"]
    assert sandbox.run(Program("while True: pass"), [Case("")], Limits(seconds=0.2))[0].status == "timeout"
    tried = []
    monkeypatch.setattr(Sandbox, "run", lambda self, *arguments: tried.append(self.driver) or [Outcome("error")])
    with pytest.raises(RuntimeError, match="no sandbox works here"):
        open_sandbox("auto")
    assert set(tried) <= {"bwrap", "landlock"} and tried
