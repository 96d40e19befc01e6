"""Advice that a run gives in its first steps: what its settings, its completions or its rewards ask for."""

from __future__ import annotations

from collections.abc import Sequence

from gspo.config.answer_format import reads_tags, tagged
from gspo.objective.clip_range import initial_range
from gspo.training.state import Run
from gspo.types import Group, Metrics

# Ranges that are narrower by this factor than where "auto" starts lost reward in the studies of docs/evidence.md (3e-4 at
# 16, 56, 64 and 100 tokens, 3e-5 at 204); 3e-4 at 204 tokens, 2.3 times narrower, did not.
NARROW = 4.0
EQUAL_STEPS = 3  # steps of equal rewards
OFTEN = 0.5  # share of completions with tags from which on the tags are not what is missing


def of_range(run: Run, metrics: Metrics) -> None:
    """Warns at the first step if the clip range is far too narrow for a ratio of completions of this length."""
    low = run.config.algorithm.epsilon
    if run.step > 1 or run.row.level != "sequence" or not isinstance(low, float):
        return
    length = run.config.algorithm.epsilon_length or metrics["completions/mean_length"]
    if low * NARROW < initial_range(length):
        run.log.warn(
            f"algorithm.epsilon = {low:g} is narrow for completions of {length:.0f} tokens: the shorter they are, the more "
            "their ratios spread. Try 0.03 with epsilon_high = 0.04, which learned fastest at 16 and 64 tokens, or epsilon "
            '= "auto" alone, which finds a range itself'
        )


def of_rewards(run: Run, groups: Sequence[Group]) -> None:
    """Warns once if in the last `EQUAL_STEPS` steps every completion got the same reward, and says what to do about it."""
    rewards = {rollout.reward for group in groups for rollout in group.rollouts if rollout.reward is not None}
    run.equal_steps = [each for each in [*run.equal_steps, *rewards] if {each} == rewards]
    if len(run.equal_steps) != EQUAL_STEPS or run.config.teacher.path:
        return
    (reward,) = rewards
    if reward >= run.config.reward.correct_threshold:
        remedy = "if all of them are right, take harder prompts; if not, the reward does not see what it is about"
    else:
        remedy = _when_all_are_wrong(run, groups)
    run.log.warn(f"in {EQUAL_STEPS} steps every completion got the reward {reward:g}, so nothing was learned: {remedy}")


def _when_all_are_wrong(run: Run, groups: Sequence[Group]) -> str:
    """What to do if no completion is right."""
    first = (
        "show the model some right answers first: `gspo sft cold.toml`, with rows of prompt and completion as task.source "
        "and this run's task.system, then this run with the folder `model` of that one as model.path"
    )
    texts = [rollout.text for group in groups for rollout in group.rollouts]
    share = sum(tagged(text) is not None for text in texts) / len(texts)
    if not reads_tags(run.config) or share > OFTEN:
        return f"if rollouts.jsonl shows that the reward is right, take easier prompts, or {first}"
    return (
        f'{share:.0%} of the completions have an answer between <answer> and </answer>. reward.functions = ["math"] finds '
        f"a number or formula without these tags; or put an example of a whole reply into task.system; or {first}"
    )
