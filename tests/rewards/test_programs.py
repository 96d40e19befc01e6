"""Programs of benchmarks, really run in a sandbox."""

import logging

import pytest

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.programs import called, codeforces, fault_of, humaneval, livecodebench
from gspo.rewards.scorer import Rewards
from tests.data.tools import rollout
from tests.logged import logs, silent
from tests.sandbox.boxes import box_of

CHECK = "def check(candidate):\n    assert candidate([1, 2], 3) == [4, 5]\n    assert candidate([], 1) == []\n"
START = 'from typing import List\n\ndef add(xs: List[int], y: int) -> List[int]:\n    """Add y to each."""\n'
CANONICAL = "    return [x + y for x in xs]\n"
EQUAL = "class E:\n    def __eq__(self, other):\n        return True\n"


def fenced(code, word="python"):
    return f"Here it is:\n```{word}\n{code}\n```\nDone."


def completed(*completions):
    return [humaneval(box_of("auto"), one, START, "add", CANONICAL, CHECK) for one in completions]


def test_humaneval_takes_bodies_and_whole_functions_and_nothing_that_is_merely_equal():
    found = completed(
        CANONICAL,
        fenced(START + CANONICAL),
        fenced("def add(xs: List[int], y):\n    return [x + y for x in xs]"),
        "    return None\n",
        fenced(f"{EQUAL}def add(xs, y):\n    return E()"),
        fenced("def add(xs, y):\n    import builtins\n    builtins.AssertionError = None\n    return 1"),
        fenced("def add(xs, y):\n    exit(0)"),
        fenced("def add(xs, y:\n"),
    )
    assert found == [1, 1, 1, 0, 0, 0, 0, 0]


def test_the_checks_of_a_wrong_canonical_solution_are_an_error():
    assert called(box_of("auto"), START, "add", CANONICAL, CHECK) == [[[1, 2], 3], [[], 1]]
    with pytest.raises(RuntimeError, match="the canonical solution of add does not pass its checks"):
        called(box_of("auto"), START, "add", "    return xs\n", CHECK)


STDIN = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4\n"}]
CALLS = [{"arguments": [[1, 2], 3], "value": [4, 5]}]


def test_livecodebench_runs_programs_and_functions():
    good = fenced("a, b = map(int, input().split())\nprint(a + b)")
    method = "class Solution:\n    def add(self, xs: List[int], y: int) -> List[int]:\n        return {}"
    cases = [
        (good, STDIN, None, 1), (fenced("print(3)"), STDIN, None, 0), ("print(3)", STDIN, None, 0),
        (fenced("from __future__ import annotations\nprint(sum(map(int, input().split())))"), STDIN, None, 1),
        (fenced(method.format("[x + y for x in xs]")), CALLS, "add", 1),
        (fenced(method.format("tuple(x + y for x in xs)")), CALLS, "add", 1),
        (fenced(f"{EQUAL}def add(*a):\n    return E()"), CALLS, "add", 0),
        (fenced("def add(xs, y):\n    return sorted(Counter(xs + [4]).elements())[-1:] + [5]"), CALLS, "add", 1),
        (fenced("def other():\n    pass"), CALLS, "add", 0), (good + fenced("print(0)"), STDIN, None, 0),
    ]  # fmt: skip
    assert [livecodebench(box_of("auto"), *case) for *case, _ in cases] == [right for *_, right in cases]
    with pytest.raises(ValueError, match="a list of tests, or an empty one"):
        livecodebench(box_of("auto"), good, [], None)


def test_a_module_that_has_something_of_its_own_name_is_the_module():
    values = "copy.deepcopy([a + b])[0]", "bisect.bisect_left(range(99), a + b)", "datetime.datetime(2000, 1, a + b).day"
    values += ("pow(a + b, 1, 9)",)  # of Python, not of math
    found = [fenced(f"a, b = map(int, input().split())\nprint({value})") for value in values]
    assert [livecodebench(box_of("auto"), one, STDIN, None) for one in found] == [1] * 4


CHECKER = """
import sys
given, wanted, said = (open(name).read().split() for name in sys.argv[1:4])
print(int(len(said) == 1 and int(said[0]) % 2 == int(wanted[0]) % 2))
"""
CPP = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"


def judged(completion, checker=None, tests=STDIN, seconds=8.0):
    return codeforces(box_of("auto"), completion, tests, checker, seconds, 256.0)


def test_codeforces_compares_outputs_or_asks_the_checker():
    add = "a, b = map(int, input().split())\nprint(a + b{})"
    assert judged(fenced(add.format("")))
    assert not judged(fenced(add.format(" + 2")))
    assert judged(fenced(add.format(" + 2")), CHECKER)
    assert not judged(fenced(add.format(" + 1")), CHECKER)
    assert not judged(fenced("while True: pass"), CHECKER, seconds=0.2)
    assert not judged("no code")
    assert not judged(fenced("print('what')"), CHECKER)  # at which the checker fails, and not at a right output
    with pytest.raises(RuntimeError, match="the problem's checker failed"):
        judged(fenced(add.format("")), "raise SystemExit(3)")


@pytest.mark.parametrize(
    "row, found",
    [
        ({"tests": STDIN, "checker": CHECKER}, ""),
        ({"tests": STDIN, "checker": None}, ""),
        ({"tests": STDIN, "checker": "import nowhere"}, "generated_checker fails"),
        ({"tests": STDIN, "checker": "print(0)"}, "generated_checker refuses the expected output"),
        ({"start": START, "function": "add", "canonical": CANONICAL, "check": CHECK}, ""),
        ({"start": START, "function": "add", "canonical": "    return (\n", "check": CHECK}, "canonical_solution fails"),
    ],
)
def test_a_problem_that_can_judge_no_reply_is_known_without_one(row, found):
    reason, why = fault_of(box_of("auto"), row)
    assert reason.startswith(found) and bool(reason) == bool(found)
    assert "canonical" not in reason or "SyntaxError" in why


def test_codeforces_compiles_cpp():
    assert judged(fenced(CPP, "cpp"))
    assert not judged(fenced(CPP.replace("a + b", "a - b"), "c++"))
    assert not judged(fenced("int main( {", "cpp"))


ROW = {"tests": STDIN, "function": None}


@pytest.mark.parametrize("sandbox", ["landlock", "none"])
def test_programs_of_benchmarks_run_in_the_sandbox_that_is_asked_for(sandbox):
    box_of(sandbox)  # skips where it is not to be had
    config = RewardConfig(functions=["gspo.rewards.programs:livecodebench"], workers=2)
    text, level = f"^programs run in the sandbox '{sandbox}'$", logging.INFO
    if sandbox == "none":
        text, level = "^programs run in no sandbox", logging.WARNING
    with Rewards(config, TaskConfig(), code=CodeConfig(sandbox=sandbox)) as rewards:
        with logs(text, level) as said:
            rewards.wait()
        scored = rewards.score([rollout(fenced("a, b = map(int, input().split())\nprint(a + b)"), **ROW)])
    assert len(said) == 1
    assert [one.reward for one in scored] == [1.0]


def test_programs_have_their_own_time_and_each_completion_a_call_of_its_own():
    """reward.timeout is for functions that may hang; a checker that fails costs its completion alone."""
    config = RewardConfig(functions=["gspo.rewards.programs:codeforces"], timeout=0.5)
    row = {"tests": STDIN, "seconds": 8.0, "memory": 256.0}
    slow = fenced("import time\na, b = map(int, input().split())\nwhile time.process_time() < 0.8: pass\nprint(a + b)")
    broken = fenced("a, b = map(int, input().split())\nprint(a + b)")
    with Rewards(config, TaskConfig()) as rewards, silent():
        failing = rollout(broken, **row, checker="raise SystemExit(3)")
        scored = rewards.score([rollout(slow, **row, checker=None), failing, rollout("none", **row, checker=None)])
    assert [one.reward for one in scored] == [1.0, None, 0.0] and "checker failed" in scored[1].error


def test_a_reward_of_another_benchmark_is_refused_before_anything_is_sampled():
    needs = r"no column 'checker', which the reward gspo\.rewards\.programs:codeforces needs"
    with Rewards(RewardConfig(functions=["gspo.rewards.programs:codeforces"]), TaskConfig()) as rewards:
        prompts = [rollout("", **ROW).prompt]
        with pytest.raises(ValueError, match=needs):
            rewards.check(prompts)
    with pytest.raises(ValueError, match=r'benchmark:humaneval has no .* for "task"; use "gspo.rewards.programs:humaneval"'):
        Rewards(RewardConfig(), TaskConfig(source="benchmark:humaneval"))
    with pytest.raises(ValueError, match=r'benchmark:a.jsonl has no scorer of its own for "task"; use "math"'):
        Rewards(RewardConfig(), TaskConfig(source="benchmark:a.jsonl"))
