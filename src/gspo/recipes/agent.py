"""An agent of two turns: it asks a shop for a price, then says what several things cost.

The model's chat template knows no tools, so the environment reads the call from the text and answers as the user.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gspo.agents.environment import Step
from gspo.data.messages import Message, content_of

NAMES = ["Anna", "Ben", "Leo", "Lily", "Max", "Mia", "Nora", "Sam", "Tom"]
ITEMS = ["apple", "book", "marble", "shell", "stamp"]
PRODUCTS = [(number, cost) for number in range(2, 6) for cost in range(2, 11)]
HELD_OUT = 8
"""Number of products that training never shows, such as 3 x 7, whoever buys what."""
QUESTION = "How much does {} pay for {} {}s? Ask for the price first."
COST = "A {} costs {} dollars."
EXAMPLE = [
    {"role": "user", "content": QUESTION.format("Emma", 3, "coin")},
    {"role": "assistant", "content": "price(coin)"},
    {"role": "user", "content": COST.format("coin", 2)},
    {"role": "assistant", "content": "3 x 2 = 6. Emma pays 6 dollars."},
]
"""Begins each episode. Without it this model never asks: 0 of 48."""


class Shop:
    """An episode. The reward is 1 for the right answer after a question for the price, else 0."""

    tools: Sequence[dict[str, Any]] = ()

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.row = row
        self.asked = False

    async def start(self) -> Sequence[Message]:
        """An example, then the question."""
        return [*EXAMPLE, {"role": "user", "content": self.row["prompt"]}]

    async def step(self, turn: Message) -> Step:
        """Tells the price, or ends the episode: after the second turn, or a first one that does not ask."""
        text = content_of(turn).strip()
        if self.asked:
            return Step(reward=float(last_number(text) == self.row["answer"]), done=True)
        self.asked = text == f"price({self.row['item']})"
        reply = {"role": "user", "content": COST.format(self.row["item"], self.row["price"])}
        return Step([reply] if self.asked else [], done=not self.asked, metrics={"asked": self.asked})


def last_number(text: str) -> str | None:
    """The last number of a text; None if it has none."""
    found = re.findall(r"\d+", text)
    return found[-1] if found else None


def training() -> list[dict[str, Any]]:
    """Rows to train on."""
    return rows(shuffled()[HELD_OUT:])


def held_out() -> list[dict[str, Any]]:
    """Rows to evaluate on. Their products are in no row of `training`."""
    return rows(shuffled()[:HELD_OUT])


def shuffled() -> list[tuple[int, int]]:
    """All products, in one random order."""
    return random.Random(0).sample(PRODUCTS, len(PRODUCTS))


def rows(products: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """A row for each product, name and item, in a random order."""
    made = [
        {"prompt": QUESTION.format(name, number, item), "item": item, "price": cost, "answer": str(number * cost)}
        for number, cost in products
        for name in NAMES
        for item in ITEMS
    ]
    return random.Random(1).sample(made, len(made))
