"""AIME and other problems with a final answer.

AIME datasets come in three schemas: ID, Problem, Solution, Answer; problem and answer, in lower case; and problem with a
solution whose last box holds the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from numbers import Number
from typing import Any

ASK = "Please reason step by step, and put your final answer within \\boxed{}."
"""Instruction that Qwen's model cards recommend for mathematical problems."""
_ANSWER = re.compile(r"[0-9]{1,3}")
_BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")  # without boxes in it: these answers need no more


def aime_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A row of any of the three schemas as prompt, answer and id. Raises ValueError if it is not an AIME problem."""
    made = answer_row(row, number)
    if not _ANSWER.fullmatch(made["answer"]):
        raise ValueError(f"the answer is {made['answer']!r:.40}; AIME's are whole numbers from 0 to 999")
    return made | {"answer": str(int(made["answer"]))}


def answer_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A problem with an answer of any form, as prompt, answer and id."""
    # Of a list, say, str would make a text that no reply equals.
    kept = [(name, value) for name, value in row.items() if isinstance(value, (str, Number)) and not isinstance(value, bool)]
    cells = {str(name).lower(): str(value).strip() for name, value in kept}

    def first(*names: str) -> str:
        return next((cells[name] for name in names if cells.get(name)), "")

    problem = first("problem", "question", "prompt")
    if not problem:
        raise ValueError(f"there is no column problem, question or prompt with text; it has {', '.join(map(str, row))}")
    boxes = _BOX.findall(first("solution"))
    answer = first("answer") or (boxes[-1].strip() if boxes else "")
    if not answer:
        raise ValueError(
            "there is no answer: expected text or a number in answer, or a solution that ends with \\boxed{...}"
        )
    return {"prompt": f"{problem}\n\n{ASK}", "answer": answer, "id": first("id", "task_id", "problem_id") or str(number)}
