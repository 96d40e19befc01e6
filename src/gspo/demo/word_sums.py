"""Sums in words, with answers that a program can check: the task of the demo. Copy it for a task of your own.

A task is a list of rows with a `prompt` and whatever the reward needs; a reward is a function of completions.
"""

from __future__ import annotations

import random
import re
from typing import Any

NAMES = ["Anna", "Ben", "Emma", "Leo", "Lily", "Max", "Mia", "Nora", "Sam", "Tom"]
OBJECTS = ["apples", "books", "coins", "marbles", "shells", "stamps"]
SUMS = [(a, "+", b) for a in range(2, 13) for b in range(2, 13)] + [(a, "-", b) for a in range(3, 13) for b in range(2, a)]
HELD_OUT = 48
"""Number of the sums that training never shows, such as 3 + 8, whatever the name and the object."""


def training(size: int = 1000, seed: int = 0) -> list[dict[str, Any]]:
    """Rows to train on."""
    return rows(shuffled()[HELD_OUT:], size, f"training {seed}")


def held_out(size: int = 128, seed: int = 0) -> list[dict[str, Any]]:
    """Rows to evaluate on. Their sums are in no row of `training`."""
    return rows(shuffled()[:HELD_OUT], size, f"held out {seed}")


def shuffled() -> list[tuple[int, str, int]]:
    """All sums, in one random order."""
    return random.Random(0).sample(SUMS, len(SUMS))


def rows(sums: list[tuple[int, str, int]], size: int, seed: str) -> list[dict[str, Any]]:
    """`size` rows with different prompts."""
    rng, made = random.Random(seed), dict[str, str]()
    while len(made) < size:
        (a, sign, b), name, objects = rng.choice(sums), rng.choice(NAMES), rng.choice(OBJECTS)
        more = f"gets {b} more. How many {objects} does {name} have now?"
        less = f"gives away {b}. How many {objects} does {name} have left?"
        prompt = f"{name} has {a} {objects} and {more if sign == '+' else less} Answer in one short sentence."
        made[prompt] = str(a + b if sign == "+" else a - b)
    return [{"prompt": prompt, "answer": answer} for prompt, answer in made.items()]


def right(prompts: list[str], completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 for one sentence whose last number is the right answer, else 0."""
    return [float(last_number(text) == expected) for text, expected in zip(completions, answer)]


def last_number(text: str) -> str | None:
    """The last number of a text that is one sentence with a full stop; None for any other text."""
    found = re.fullmatch(r"[^.!?\n]*?(\d+)[^.!?\d\n]*\.", text.strip())
    return found[1] if found else None
