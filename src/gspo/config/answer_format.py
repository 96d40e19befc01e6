"""Where the answer of a completion is: in tags, for which the default system message asks, and after its thinking."""

from __future__ import annotations

from gspo.config.schema import Config
from gspo.config.source_kind import GENERATED, in_environment

IN_TAGS = "Put your final answer between <answer> and </answer>."


def default_system(config: Config) -> str:
    """The system message that `task.system = "auto"` stands for under a chat template; "" if no reward reads answer tags."""
    return IN_TAGS if reads_tags(config) else ""


def reads_tags(config: Config) -> bool:
    """Whether a reward needs the answer in tags: `task`, or `exact`, which else compares the whole. `math` finds it
    anywhere.
    """
    generated = config.task.source.startswith(GENERATED)
    needs = "exact" in config.reward.functions or ("task" in config.reward.functions and generated)
    return needs and not in_environment(config.task)


def tagged(completion: str) -> str | None:
    """The content of the last complete <answer>...</answer> of a completion, stripped; None if there is none."""
    start = completion.rfind("<answer>", 0, max(0, completion.rfind("</answer>")))
    if start < 0:
        return None
    return completion[start + len("<answer>") : completion.find("</answer>", start)].strip()


def after_thinking(text: str, thinks: bool = False) -> str:
    """A completion without its thinking; "" if the thinking never ends. thinks: whether it began in the prompt."""
    if "</think>" in text:
        return text.rpartition("</think>")[2]
    return "" if thinks or "<think>" in text else text
