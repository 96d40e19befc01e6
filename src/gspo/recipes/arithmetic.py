"""Sums of two steps in words. `cold_start` has worked answers to imitate, the others only the right number."""

from __future__ import annotations

import random
import re
from typing import Any

NAMES = ["Anna", "Ben", "Emma", "Leo", "Lily", "Max", "Mia", "Nora", "Sam", "Tom"]
OBJECTS = ["apples", "books", "coins", "marbles", "shells", "stamps"]
VERBS = {"+": ["finds", "buys", "gets"], "-": ["loses", "sells", "gives away"]}
HELD_OUT = 500
"""Number of the sums that no training shows, such as 7 + 8 - 5."""


def cold_start(size: int = 256, seed: int = 0) -> list[dict[str, Any]]:
    """Rows to imitate: the working and the answer are the column `completion`."""
    return rows(sums()[HELD_OUT:], size, f"cold start {seed}")


def training(size: int = 2000, seed: int = 0) -> list[dict[str, Any]]:
    """Rows to train on by reward."""
    return rows(sums()[HELD_OUT:], size, f"training {seed}")


def held_out(size: int = 256, seed: int = 0) -> list[dict[str, Any]]:
    """Rows to evaluate on."""
    return rows(sums()[:HELD_OUT], size, f"held out {seed}")


def sums() -> list[tuple[int, str, int, str, int]]:
    """All sums whose numbers are from 2 to 12 and whose results are above 0, in one random order."""
    numbers, signs = range(2, 13), ((1, "+"), (-1, "-"))
    found = [
        (a, first, b, second, c)
        for a in numbers for b in numbers for c in numbers for x, first in signs for y, second in signs
        if a + x * b > 0 and a + x * b + y * c > 0
    ]  # fmt: skip
    return random.Random(0).sample(found, len(found))


def rows(found: list[tuple[int, str, int, str, int]], size: int, seed: str) -> list[dict[str, Any]]:
    """`size` rows, one for each of as many sums."""
    rng = random.Random(seed)
    return [row(rng, *terms) for terms in rng.sample(found, size)]


def row(rng: random.Random, a: int, first: str, b: int, second: str, c: int) -> dict[str, Any]:
    """A question about a first b second c, with its worked answer."""
    name, objects = rng.choice(NAMES), rng.choice(OBJECTS)
    middle = a + b if first == "+" else a - b
    answer = middle + c if second == "+" else middle - c
    text = f"{name} has {a} {objects}, {rng.choice(VERBS[first])} {b} and then {rng.choice(VERBS[second])} {c}."
    return {
        "prompt": f"{text} How many {objects} does {name} have now? Work it out in steps.",
        "completion": f"{a} {first} {b} = {middle}. {middle} {second} {c} = {answer}. The answer is {answer}.",
        "answer": str(answer),
    }


def right(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 if the completion ends with "The answer is" and the right number, else 0."""
    found = [re.search(r"The answer is (\d+)\.?$", text.strip()) for text in completions]
    return [float(match is not None and match[1] == right) for match, right in zip(found, answer)]
