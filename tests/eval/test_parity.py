"""LiveCodeBench's own evaluator and ours on the same programs. make test-benchmarks installs nvidia-livecodebench."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gspo.rewards.programs import livecodebench
from tests.patience import PATIENCE
from tests.sandbox.boxes import box_of

SPEC = find_spec("livecodebench")
pytestmark = [pytest.mark.skipif(SPEC is None, reason="nvidia-livecodebench is not installed: make test-benchmarks")]

SUM = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 5\n", "output": "10\n"}]
HALF = [{"input": "3\n", "output": "1.5\n2\n"}]
ADD = [{"arguments": [[1, 2], 3], "value": [4, 5]}, {"arguments": [[], 3], "value": []}]
READ = "a, b = map(int, input().split())\n"
METHOD = "class Solution:\n    def add(self, xs: List[int], y: int):\n        return {}"
EQUAL = "class E:\n    def __eq__(self, other):\n        return True\n"

SAME = {  # program, tests, function, verdict of both
    "right": (READ + "print(a + b)", SUM, None, True),
    "wrong": (READ + "print(a - b)", SUM, None, False),
    "blanks at the ends": (READ + "print(' ', a + b, ' ')\nprint()", SUM, None, True),
    "one line more": (READ + "print(a + b)\nprint(0)", SUM, None, False),
    "nothing": ("pass", SUM, None, False),
    "a decimal for a whole number": (READ + "print(f'{a + b}.00')", SUM, None, True),
    "an exponent": (READ + "print(f'{(a + b) / 10}e1')", SUM, None, True),
    "an error": (READ + "print(a + b)\n1 / 0", SUM, None, False),
    "no syntax": ("print(", SUM, None, False),
    "too slow": ("while True: pass", SUM[:1], None, False),
    "main": ("def main():\n    " + READ + "    print(a + b)\n\nif __name__ == '__main__':\n    main()", SUM, None, True),
    "sys.stdin.read": ("a, b = map(int, sys.stdin.read().split())\nprint(a + b)", SUM, None, True),
    "names that nobody imported": (READ + "print(sum(Counter({0: a + b}).values()))", SUM, None, True),
    "bisect without import": (READ + "print(bisect.bisect_left(range(99), a + b))", SUM, None, True),
    "pow of builtins": (READ + "print(pow(a + b, 1, 1000))", SUM, None, True),
    "two lines": ("n = int(input())\nprint(n / 2)\nprint(n - 1)", HALF, None, True),
    "two lines in one": ("n = int(input())\nprint(n / 2, n - 1)", HALF, None, False),
    "sys.exit": (READ + "print(a + b)\nsys.exit()", SUM, None, True),
    "method": (METHOD.format("[x + y for x in xs]"), ADD, "add", True),
    "tuple for a list": (METHOD.format("tuple(x + y for x in xs)"), ADD, "add", True),
    "floats for whole numbers": (METHOD.format("[float(x + y) for x in xs]"), ADD, "add", True),
    "text for numbers": (METHOD.format("[str(x + y) for x in xs]"), ADD, "add", False),
    "None": (METHOD.format("None"), ADD, "add", False),
    "plain function": ("def add(xs, y):\n    return [x + y for x in xs]", ADD, "add", True),
    "no such function": ("def sub(xs, y):\n    return xs", ADD, "add", False),
}
DIFFERENT = {  # program, tests, function, theirs, ours: as docs/benchmarks.md lists them
    "an object that equals everything": (f"{EQUAL}def add(xs, y):\n    return E()", ADD, "add", True, False),
    "the name on the right": (READ + "if '__main__' == __name__:\n    print(a + b)", SUM, None, False, True),
    "annotations from the future": ("from __future__ import annotations\ndef add(xs, y):\n    return [x + y for x in xs]",
                                    ADD, "add", False, True),
    "a global of the program": ("t = 0\ndef f(n):\n    global t\n    t += n\n" + READ + "f(a)\nf(b)\nprint(t)",
                                SUM, None, False, True),
    "an exit status": (READ + "print(a + b)\nsys.exit(1)", SUM, None, True, False),
    "a count that outlives a test": ("class Solution:\n    n = 0\n    def add(self, xs, y):\n        self.n += 1\n"
                                     "        return [x + y for x in xs] if self.n == 1 else 0", ADD, "add", False, True),
    "a package": ("import numpy\n" + READ + "print(numpy.add(a, b))", SUM, None, True, False),
    "a sleep": ("import time\n" + READ + "time.sleep(3)\nprint(a + b)", SUM[:1], None, False, True),  # they have 2 s here
}  # fmt: skip

THEIRS = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("testing_util", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sample, code = json.loads(sys.stdin.read())
out = sys.stdout
results, _ = module.run_test({"input_output": json.dumps(sample)}, test=code, timeout=int(sys.argv[2]))
print("verdict", all(result is True or (type(result) is not int and result > 0) for result in results), file=out)
"""


def theirs(code, tests, function):
    entries = ["\n".join(map(json.dumps, test["arguments"])) if function else test["input"] for test in tests]
    wanted = [json.dumps(test["value"]) if function else test["output"] for test in tests]
    sample = {"inputs": entries, "outputs": wanted, "fn_name": function}
    path = Path(SPEC.submodule_search_locations[0]) / "evaluation/testing_util.py"
    seconds = 2 if "sleep" in code or "while True" in code else int(PATIENCE)  # of wall
    command = [sys.executable, "-c", THEIRS, str(path), str(seconds)]
    run = subprocess.run(command, input=json.dumps([sample, code]), capture_output=True, text=True, timeout=PATIENCE)
    assert "verdict" in run.stdout, run.stderr
    return "verdict True" in run.stdout


def ours(code, tests, function):
    return livecodebench(box_of("auto"), f"```python\n{code}\n```", tests, function)


@pytest.mark.parametrize("name", SAME)
def test_both_say_the_same(name):
    *program, verdict = SAME[name]
    assert (theirs(*program), ours(*program)) == (verdict, verdict)


@pytest.mark.parametrize("name", DIFFERENT)
def test_known_differences(name):
    *program, their_verdict, our_verdict = DIFFERENT[name]
    assert (theirs(*program), ours(*program)) == (their_verdict, our_verdict)
