"""Small functions to write, with tests that the reward `code` runs in a sandbox. Copy it for a task of your own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

ASK = "Write a Python function {} that returns {}. Reply with a short code block, without an explanation."
HELD_OUT = 48
"""Number of tasks that training never shows."""
NUMBERS = [-7, 0, 3, 8, 21]
WORDS = ["a", "Level", "BANANA", "a river runs to the sea"]
LISTS = [[4], [3, 1, 2], [5, -2, 5, 9], [10, 20, 30, 40]]
Task = tuple[str, list[Any], Callable[..., Any]]
"""What the function takes and returns, arguments for its tests, and a function that is right."""


def tasks() -> list[Task]:
    """All tasks, those with a number in them for each number."""
    pairs = [[a, b] for a in NUMBERS for b in (2, 5)]
    made: list[Task] = [
        ("f(a, b)|the sum of a and b", pairs, lambda a, b: a + b),
        ("f(a, b)|the product of a and b", pairs, lambda a, b: a * b),
        ("f(a, b)|a minus b", pairs, lambda a, b: a - b),
        ("f(a, b)|the larger one of a and b", pairs, max),
        ("f(a, b)|the smaller one of a and b", pairs, min),
        ("f(a, b)|True if a is larger than b, else False", pairs, lambda a, b: a > b),
        ("f(s)|the length of the string s", WORDS, len),
        ("f(s)|the string s in upper case", WORDS, str.upper),
        ("f(s)|the string s in lower case", WORDS, str.lower),
        ("f(s)|the string s reversed", WORDS, lambda s: s[::-1]),
        ("f(s)|the first character of the string s", WORDS, lambda s: s[0]),
        ("f(s)|the last character of the string s", WORDS, lambda s: s[-1]),
        ("f(s)|the number of letters a in the string s", WORDS, lambda s: s.count("a")),
        ("f(s)|the list of words in the string s", WORDS, str.split),
        ("f(v)|the sum of the list v", LISTS, sum),
        ("f(v)|the largest number in the list v", LISTS, max),
        ("f(v)|the smallest number in the list v", LISTS, min),
        ("f(v)|the list v sorted", LISTS, sorted),
        ("f(v)|the list v reversed", LISTS, lambda v: v[::-1]),
        ("f(v)|the first element of the list v", LISTS, lambda v: v[0]),
        ("f(v)|the last element of the list v", LISTS, lambda v: v[-1]),
        ("f(x)|the square of x", NUMBERS, lambda x: x * x),
        ("f(x)|the absolute value of x", NUMBERS, abs),
        ("f(x)|True if x is even, else False", NUMBERS, lambda x: x % 2 == 0),
        ("f(x)|x as a string", NUMBERS, str),
    ]
    for n in range(2, 16):
        made += [
            (f"f(x)|x plus {n}", NUMBERS, lambda x, n=n: x + n),
            (f"f(x)|x minus {n}", NUMBERS, lambda x, n=n: x - n),
            (f"f(x)|x times {n}", NUMBERS, lambda x, n=n: x * n),
            (f"f(x)|{n} minus x", NUMBERS, lambda x, n=n: n - x),
            (f"f(x)|the remainder of x divided by {n}", NUMBERS, lambda x, n=n: x % n),
            (f"f(x)|True if x is larger than {n}, else False", [n - 1, n, n + 1], lambda x, n=n: x > n),
            (f"f(s)|the string s repeated {n} times", WORDS, lambda s, n=n: s * n),
            (f"f(s)|the first {n} characters of the string s", WORDS, lambda s, n=n: s[:n]),
            (f"f(v)|the list v with {n} added to each element", LISTS, lambda v, n=n: [x + n for x in v]),
            (f"f(v)|the list v with each element times {n}", LISTS, lambda v, n=n: [x * n for x in v]),
        ]
    return random.Random(0).sample(made, len(made))


def rows(some: list[Task]) -> list[dict[str, Any]]:
    """A row for each task: its prompt, the name of the function, and the tests that its program must pass."""
    made = []
    for text, inputs, function in some:
        calls = [list(one) if "(a, b)" in text else [one] for one in inputs]
        tests = [{"arguments": arguments, "value": function(*arguments)} for arguments in calls]
        made.append({"prompt": ASK.format(*text.split("|")), "function": "f", "tests": tests})
    return made


def training() -> list[dict[str, Any]]:
    """Rows to train on."""
    return rows(tasks()[HELD_OUT:])


def held_out() -> list[dict[str, Any]]:
    """Rows to evaluate on: other tasks, though most differ from one of `training` only in a number."""
    return rows(tasks()[:HELD_OUT])
