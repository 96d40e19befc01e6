"""Which box holds the ball? With a tool, the policy may look into one box at a time. Each holds the ball, or a note that
names another box, nearer to the ball. Or the policy may guess.

A model that imitates the cold start does both. Rewards teach it that looking pays, though each look costs a little.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gspo.agents.environment import Step, ToolEnvironment
from gspo.data.messages import Message

BOXES, ROOMS = "abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
QUESTION = "Room {}: which box holds the ball?"  # the room makes each question unique, so it can be held out
BALL, NOTE = "the ball is in {}", "see {}"
CALL = '<tool_call>{{"name": "look", "arguments": {{"box": "{}"}}}}</tool_call>'
VERDICT = "Box {}."
HELP = f"error: look into one of {BOXES}"
LOOK_COSTS = 0.02
PIECES = [
    *BOXES, *ROOMS, "<|user|>", "<|assistant|>", "<|tool|>", "Room ", ": which box holds the ball?",
    *map(BALL.format, BOXES), *map(NOTE.format, BOXES),
    '<tool_call>{"name": "look", "arguments": {"box": "', '"}}</tool_call>', "Box ", ".", HELP,
]  # fmt: skip
"""Vocabulary of the demo's tokenizer."""
TOOL_TEXTS = {form.format(box) for form in (BALL, NOTE) for box in BOXES}
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    """{{ '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}"""
    "{{ '}</tool_call>' }}"
    "{% endfor %}{{ eos_token if message.role == 'assistant' }}{% endfor %}"
    "{{ '<|assistant|>' if add_generation_prompt }}"
)


class Boxes(ToolEnvironment):
    """An episode: look as often as you like, then name a box. The reward is 1 for the right one, minus the cost of looks."""

    looks = 0

    def functions_of(self) -> Sequence[Callable[..., Any]]:
        """The only tool."""
        return [self.look]

    def look(self, box: str) -> str:
        """Looks into a box.

        Args:
            box: The letter of the box.
        """
        if box not in BOXES or len(box) != 1:
            return HELP
        self.looks += 1
        return content_of_box(self.row["way"], box)

    async def step(self, turn: Message) -> Step:
        """As in every environment with tools, but a turn with a call costs LOOK_COSTS, also if the call cannot be parsed."""
        step = await super().step(turn)
        if step.done:
            return replace(step, metrics={"found": step.reward, "looks": self.looks})
        # The model's vocabulary holds no other tool messages.
        other = {"role": "tool", "content": HELP}
        messages = [heard if heard["content"] in TOOL_TEXTS else heard | other for heard in step.messages]
        return replace(step, messages=messages, reward=-LOOK_COSTS)

    async def end(self, text: str) -> float:
        """1 for the right box, else 0."""
        return float(text == VERDICT.format(self.row["way"][-1]))


def content_of_box(way: str, box: str) -> str:
    """What a look into a box shows."""
    return BALL.format(box) if box == way[-1] else NOTE.format(way[way.index(box) + 1])


def hidden(rng: random.Random) -> dict[str, str]:
    """A random room, and the path through its boxes: each names the next, and the last one holds the ball."""
    room = "".join(rng.choices(ROOMS, k=4))
    return {"prompt": QUESTION.format(room), "way": "".join(rng.sample(BOXES, len(BOXES)))}


def questions(size: int, seed: int) -> list[dict[str, str]]:
    """`size` random questions."""
    rng = random.Random(f"questions {seed}")
    return [hidden(rng) for _ in range(size)]


def cold_start(size: int, looking: float, slip: float, seed: int) -> list[dict[str, Any]]:
    """Rows with a question as `prompt` and the rest of the conversation as `completion`, tool output included.

    looking: share of rows that look until they find the ball; the rest guess. slip: probability of giving up and guessing
    after each look.
    """
    rng = random.Random(f"cold start {seed}")
    rows = []
    for _ in range(size):
        row = hidden(rng)
        verdict, completion, way = rng.choice(BOXES), "", row["way"]
        for box in way[rng.randrange(len(way)) :] if rng.random() < looking else "":
            completion += f"{CALL.format(box)}<eos><|tool|>{content_of_box(way, box)}<|assistant|>"
            if box == way[-1]:
                verdict = box
            if rng.random() < slip:
                break
        rows.append({"prompt": row["prompt"], "completion": completion + VERDICT.format(verdict)})
    return rows
