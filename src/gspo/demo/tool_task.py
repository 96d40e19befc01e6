"""Which box holds the ball? One may look into a box at a time, with a tool: it holds the ball, or a note that names another
box, nearer to it. Or one may guess.

The model that imitates the cold start does both. Rewards tell it that looking pays, though each look costs a little.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gspo.agents.calls import Message
from gspo.agents.environment import Step, ToolEnvironment

BOXES, ROOMS = "abcdef", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
QUESTION = "Room {}: which box holds the ball?"  # the room makes it a question of its own, to be held out or not
BALL, NOTE = "the ball is in {}", "see {}"
CALL = '<tool_call>{{"name": "look", "arguments": {{"box": "{}"}}}}</tool_call>'
VERDICT = "Box {}."
HELP = f"error: look into one of {BOXES}"
LOOK_COSTS = 0.02
PIECES = [
    *BOXES,
    *ROOMS,
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "Room ",
    ": which box holds the ball?",
    *map(BALL.format, BOXES),
    *map(NOTE.format, BOXES),
    '<tool_call>{"name": "look", "arguments": {"box": "',
    '"}}</tool_call>',
    "Box ",
    ".",
    HELP,
]
"""The entries of the demo's tokenizer."""
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
    """An episode: look as often as you like, then name a box. The reward is 1 for the right one, less what looks cost."""

    looks = 0

    def functions_of(self) -> Sequence[Callable[..., Any]]:
        """The one tool."""
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
        """As in every environment with tools; a look costs a little, and so does a call that cannot be read."""
        step = await super().step(turn)
        if step.done:
            return replace(step, metrics={"found": step.reward, "looks": self.looks})
        # A model of these few words reads no others.
        messages = [
            message if message["content"] in TOOL_TEXTS else message | {"content": HELP} for message in step.messages
        ]
        return replace(step, messages=messages, reward=-LOOK_COSTS)

    async def end(self, text: str) -> float:
        """1 for the right box."""
        return float(text == VERDICT.format(self.row["way"][-1]))


def content_of_box(way: str, box: str) -> str:
    """What is in a box."""
    return BALL.format(box) if box == way[-1] else NOTE.format(way[way.index(box) + 1])


def hidden(rng: random.Random) -> dict[str, str]:
    """A room, and the way through its boxes: each names the next, and the last one holds the ball."""
    room = "".join(rng.choices(ROOMS, k=4))
    return {"prompt": QUESTION.format(room), "way": "".join(rng.sample(BOXES, len(BOXES)))}


def questions(size: int, seed: int) -> list[dict[str, str]]:
    """`size` rows to play."""
    rng = random.Random(f"questions {seed}")
    return [hidden(rng) for _ in range(size)]


def cold_start(size: int, looking: float, slip: float, seed: int) -> list[dict[str, Any]]:
    """`size` rows with a question as `prompt` and all that follows as `completion`, what the tool says included. A share
    `looking` of them look until they know, but give up and guess after each look with probability `slip`. The rest guess.
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
