"""What a rollout step is timed on: the tasks of rollout_step.py. Imports neither gspo nor TRL, whose workers read it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chain

WORD_SUMS = Path(__file__).resolve().parents[2] / "src" / "gspo" / "demo" / "word_sums.py"


@dataclass(frozen=True)
class Task:
    """Rows, and the sizes of a rollout batch. Each batch gives 4 updates.

    Attributes:
        rows: The rows, each with a `prompt`, and an `answer` if the reward needs one.
        reward: Reward of a completion, given its row's `answer`.
        pretrained: Whether the model is SmolLM2-135M-Instruct; otherwise it is the chain task's.
        prompts: Prompts of a rollout batch.
        completion_tokens: Longest completion. Without `ends`, each completion's length.
        lr: Learning rate.
        clip: Clip range, lower and upper.
        temperature: Sampling temperature.
        ends: Whether a completion ends at the model's end token.
    """

    rows: Callable[[], list[dict[str, Any]]]
    reward: Callable[[str, Any], float]
    pretrained: bool = False
    prompts: int = 16
    completion_tokens: int = chain.COMPLETION_TOKENS
    lr: float = 1e-4
    clip: tuple[float, float] = (3e-4, 4e-4)
    temperature: float = 1.0
    ends: bool = False

    def scores(self, completions: Sequence[Any], answer: Sequence[Any] | None = None, **columns: Any) -> list[float]:
        """Rewards of completions: texts, or messages as TRL gives them where prompts are messages."""
        texts = [text if isinstance(text, str) else text[0]["content"] for text in completions]
        return [self.reward(text, expected) for text, expected in zip(texts, answer or [None] * len(texts))]


def chain_rows(examples: int) -> list[dict[str, Any]]:
    """Prompts of the chain task. examples: number of worked ones before each question."""
    return [{"prompt": item.prompt} for item in chain.make_items(2048, examples=examples)]


def word_sums() -> Any:
    """The module of the demo's task. It needs no other module of gspo, which TRL's environment lacks."""
    spec = importlib.util.spec_from_file_location("word_sums", WORD_SUMS)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sums() -> list[dict[str, Any]]:
    """Prompts of the demo, as messages."""
    return [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in word_sums().training()
    ]


def digits(text: str, answer: Any) -> float:
    """Differs between any two completions, so that no program has updates to skip."""
    return chain.digit_share(text)


def right(text: str, answer: Any) -> float:
    """The demo's reward."""
    return float(word_sums().last_number(text) == answer)


GENERATIONS, MINI_BATCHES = 8, 4
REAL = {"pretrained": True, "prompts": 8, "lr": 1e-5, "clip": (0.026, 0.026)}  # .1/sqrt(15), as `auto` starts
TASKS = {
    "chain": Task(lambda: chain_rows(0), digits),
    "worked examples": Task(lambda: chain_rows(6), digits),
    "SmolLM2, 32 tokens": Task(sums, digits, completion_tokens=32, **REAL),
    "SmolLM2, the demo": Task(sums, right, completion_tokens=24, temperature=0.7, ends=True, **REAL),
}
