"""The default system message, which says where to put the answer if a reward looks for it in tags."""

from __future__ import annotations

from gspo.config.schema import Config
from gspo.config.source_kind import GENERATED, played

IN_TAGS = "Put your final answer between <answer> and </answer>."


def default_system(config: Config) -> str:
    """The system message that `task.system = "auto"` stands for under a chat template; "" if no reward reads answer tags.

    The reward `task` reads only the tags; `exact` compares the whole completion if there are none.
    """
    if played(config.task):
        return ""
    generated = config.task.source.startswith(GENERATED)
    reads_tags = "exact" in config.reward.functions or ("task" in config.reward.functions and generated)
    return IN_TAGS if reads_tags else ""
