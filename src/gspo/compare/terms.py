"""The terms of a comparison: what the configurations of a study's cells share, and where they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from gspo.compare.spec import SET_BY_THE_STUDY, Cell
from gspo.config.answer_format import default_system
from gspo.config.files import to_dict
from gspo.config.schema import STAGE, Config

# What decides which prompts a step has, and their order.
PROMPTS = ("task.", "eval.num_prompts", "rollout.num_prompts", STAGE)
# What decides how much room a prompt leaves.
ROOM = ("rollout.max_completion_length", "eval.max_completion_length", "model.", "sampler.engine_args")
MODEL = ("model.", "lora.")


def settings(cell: Cell) -> dict[str, Any]:
    """`section.key` -> value, without the keys that the study sets for each cell."""
    tables = to_dict(cell.config)
    stages = tables.pop(STAGE, [])
    flat = {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()} | {STAGE: stages}
    return {key: value for key, value in flat.items() if key not in SET_BY_THE_STUDY}


def differing(cells: Sequence[Cell]) -> list[str]:
    """The keys that differ among cells of the same setting, in order."""
    found: dict[str, None] = {}
    for here in _by_setting(cells):
        each = [settings(cell) for cell in here]
        keys = dict.fromkeys(key for one in each for key in one)
        found |= dict.fromkeys(key for key in keys if any(one.get(key) != each[0].get(key) for one in each))
    return list(found)


def describe(cells: Sequence[Cell], steps: Mapping[tuple[str, str, int], int]) -> str:
    """What cells with the same seed share, and where variants differ. `steps`: by setting, variant and seed."""
    keys = differing(cells)
    shared = ["the same prompts in the same order"] if _same_prompts(cells, keys) else []
    if not any(key.startswith(MODEL) for key in keys):
        shared.append("the same model to begin with")
    ran: dict[tuple[str, int], set[int]] = defaultdict(set)
    for (setting, _, seed), count in steps.items():
        ran[setting, seed].add(count)
    if "train.steps" not in keys and all(len(each) == 1 for each in ran.values()):
        shared.append("the same number of steps")
    whose = "Within a setting, cells" if len({cell.setting for cell in cells}) > 1 else "Cells"
    text = f"{whose} with the same seed have {', '.join(shared)}. " if shared else ""
    return text + (f"Variants differ in {', '.join(keys)}." if keys else "Variants do not differ.")


def _same_prompts(cells: Sequence[Cell], keys: Sequence[str]) -> bool:
    """Whether each step has the same prompts in all cells: the same rows, worded alike, and not selected by the run."""
    configs = [cell.config for cell in cells]
    if any(c.rollout.dynamic_sampling_rounds or c.rollout.max_staleness or c.refresh.every for c in configs):
        return False
    if any(key.startswith(PROMPTS) for key in keys):
        return False
    if any(key.startswith(ROOM) for key in keys) and any(config.task.too_long == "leave_out" for config in configs):
        return False
    return all(len({_system(cell.config) for cell in here}) == 1 for here in _by_setting(cells))


def _system(config: Config) -> str:
    return default_system(config) if config.task.system == "auto" else config.task.system


def _by_setting(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of each setting, which stand together."""
    return [list(here) for _, here in groupby(cells, lambda cell: cell.setting)]
