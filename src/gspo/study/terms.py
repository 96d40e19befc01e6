"""On which terms the cells of a study are compared: what their configurations share, and what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspo.config.files import to_dict
from gspo.config.schema import STAGE
from gspo.study.spec import SET_BY_THE_STUDY, Cell

# Which prompts a step has, and their order.
PROMPTS = ("task.", "eval.num_prompts", "rollout.num_prompts", "rollout.refill", "refresh.", STAGE)
MODEL = ("model.", "lora.")
Value = Any


def settings(cell: Cell) -> dict[str, Value]:
    """`section.key` -> value, but for what the study sets for each cell."""
    tables = to_dict(cell.config)
    stages = tables.pop(STAGE, [])
    flat = {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()} | {STAGE: stages}
    return {key: value for key, value in flat.items() if key not in SET_BY_THE_STUDY}


def differing(cells: Sequence[Cell]) -> list[str]:
    """The keys in which cells of one setting differ, in order."""
    found: dict[str, None] = {}
    for setting in dict.fromkeys(cell.setting for cell in cells):
        each = [settings(cell) for cell in cells if cell.setting == setting]
        keys = dict.fromkeys(key for one in each for key in one)
        found |= dict.fromkeys(key for key in keys if any(one.get(key) != each[0].get(key) for one in each))
    return list(found)


def told(cells: Sequence[Cell]) -> str:
    """What cells with the same seed have in common, and in what the variants of a setting differ, in words."""
    keys = differing(cells)
    shared = [
        words
        for words, prefixes in (
            ("the same prompts in the same order", PROMPTS),
            ("the same model to begin with", MODEL),
            ("the same number of steps", ("train.steps",)),
        )
        if not any(key.startswith(prefixes) for key in keys)
    ]
    text = f"Cells with the same seed have {', '.join(shared)}. " if shared else ""
    return text + (f"Variants differ in {', '.join(keys)}." if keys else "Variants do not differ.")
