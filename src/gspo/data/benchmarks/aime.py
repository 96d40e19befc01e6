"""AIME and other problems with a final answer.

AIME datasets come in three schemas: ID, Problem, Solution, Answer; problem and answer, in lower case; and problem with a
solution whose last box holds the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ASK = "Please reason step by step, and put your final answer within \\boxed{}."
"""Instruction that Qwen's model cards recommend for mathematical problems."""
_ANSWER = re.compile(r"[0-9]{1,3}")


def aime_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A row of any of the three schemas as prompt, answer and id. Raises ValueError if it is not an AIME problem."""
    made = answer_row(row, number)
    if not _ANSWER.fullmatch(made["answer"]):
        raise ValueError(f"the answer is {made['answer']!r:.40}; AIME's are whole numbers from 0 to 999")
    return made | {"answer": str(int(made["answer"]))}


def answer_row(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A problem with an answer of any form, as prompt, answer and id."""
    cells = {str(name).lower(): value for name, value in row.items()}
    problem = next((cells[name] for name in ("problem", "question", "prompt") if _there(cells.get(name))), None)
    if not isinstance(problem, str):
        raise ValueError(f"there is no column problem, question or prompt with text; it has {', '.join(map(str, row))}")
    answer = cells.get("answer")
    if not _there(answer):
        answer = _boxed(str(cells.get("solution") or ""))
    if not _there(answer):
        raise ValueError("there is no answer: expected a column answer, or a column solution that ends with \\boxed{...}")
    name = next((str(cells[key]) for key in ("id", "task_id", "problem_id") if _there(cells.get(key))), str(number))
    return {"prompt": f"{problem.strip()}\n\n{ASK}", "answer": str(answer).strip(), "id": name}


def _there(value: Any) -> bool:
    return value is not None and str(value).strip() != ""


def _boxed(solution: str) -> str | None:
    """The content of the last box of a solution, without boxes nested in it; AIME's answers need no more."""
    found = re.findall(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}", solution)
    return found[-1].strip() if found else None
