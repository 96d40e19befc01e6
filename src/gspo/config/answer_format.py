"""How a completion is asked to give its answer, where a reward looks for it in a certain place."""

from __future__ import annotations

from gspo.config.schema import Config
from gspo.config.source_kind import GENERATED, played

IN_TAGS = "Put your final answer between <answer> and </answer>."


def default_system(config: Config) -> str:
    """What `task.system = "auto"` stands for under a chat template; "" where no reward reads tags.

    `task` reads nothing but tags, and `exact` compares the whole completion where there are none.
    """
    if played(config.task):
        return ""
    generated = config.task.source.startswith(GENERATED)
    reads_tags = "exact" in config.reward.functions or ("task" in config.reward.functions and generated)
    return IN_TAGS if reads_tags else ""
