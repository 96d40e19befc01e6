"""Cold-start data for reasoning-gym's count_bits: step-by-step solutions, and guesses marked as such.

A model that imitates this mixture can do both. Nothing tells it which one pays; that is left to reinforcement learning.
"""

from __future__ import annotations

import random
from typing import Any

from gspo.config.rollout import TaskConfig
from gspo.data.loaders import generate

TASK = "reasoning_gym:count_bits"
QUESTION = "How many 1 bits are there in the binary representation of the number {}?"
GUESS = "<think>I do not work this out, I take a guess.</think>"

PIECES = [
    *"0123456789", "How many 1 bits are there in the binary representation of the number ", "?",
    "<think>", "</think>", "<answer>", "</answer>", " even ", " odd ", "; ",
    "I ", "do ", "not ", "work ", "this ", "out, ", "take ", "a ", "guess.",
]  # fmt: skip
"""Vocabulary of the demo's tokenizer."""


def work_out(n: int, rng: random.Random, slip: float) -> str:
    """A worked solution: halves n down to 0 and counts the odd numbers. Each step miscounts with probability `slip`."""
    count, lines = 0, []
    while n > 0:
        count += n % 2
        if rng.random() < slip:
            count = max(0, count + rng.choice((-1, 1)))
        lines.append(f"{n} {'odd' if n % 2 else 'even'} {count}")
        n //= 2
    return f"<think>{'; '.join(lines)}</think><answer>{count}</answer>"


def guess(low: int, high: int, rng: random.Random) -> str:
    """A guess: the answer to a random number of the range."""
    return f"{GUESS}<answer>{rng.randint(low, high).bit_count()}</answer>"


def cold_start(
    size: int, min_n: int, max_n: int, worked: float, slip: float, seed: int, held_out: int
) -> list[dict[str, Any]]:
    """`size` rows with `prompt` and `completion`, about numbers from min_n to max_n, which may repeat.

    worked: share of rows with a worked solution; the rest are guesses. slip: probability of a miscount in each step of one.
    held_out: number of questions that training with this task and seed evaluates on. They are in no row.
    """
    task = TaskConfig(source=TASK, config={"min_n": min_n, "max_n": max_n}, seed=seed)
    left_out = {row["question"] for _, row in generate(TASK, task, 0, held_out)[1]}
    rng = random.Random(f"cold start {seed}")
    rows: list[dict[str, Any]] = []
    while len(rows) < size:
        n = rng.randint(min_n, max_n)
        prompt = QUESTION.format(n)
        if prompt not in left_out:
            completion = work_out(n, rng, slip) if rng.random() < worked else guess(min_n, max_n, rng)
            rows.append({"prompt": prompt, "completion": completion})
    return rows


def worked(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """1 for a completion that works out its answer, 0 for a guess. A reward of weight 0, as a metric to watch."""
    return [float("odd" in completion) for completion in completions]
