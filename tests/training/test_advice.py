"""What a run says in its first steps about its clip range and its rewards."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gspo.config.algorithm import resolved
from gspo.config.files import from_dict
from gspo.objective.algorithms import ALGORITHMS
from gspo.training import advice
from gspo.types import Group, Prompt, Rollout
from tests.training.whole import lines, train


def run_of(step=1, **sections):
    """As much of a run as advice reads, and what it says."""
    tables = {"task": {"source": "rows.jsonl"}, "reward": {"functions": ["exact"]}} | sections
    config, said = resolved(from_dict(tables))[0], []
    row, log = ALGORITHMS[config.algorithm.name], SimpleNamespace(warn=said.append)
    return SimpleNamespace(config=config, row=row, step=step, equal_steps=[], log=log), said


def ranged(length, step=1, **algorithm):
    run, said = run_of(step, algorithm=algorithm)
    advice.of_range(run, {"completions/mean_length": length})
    return said


def test_a_range_that_is_narrow_for_the_length_is_told_with_one_that_fits():
    assert ranged(25.0) == [
        "algorithm.epsilon = 0.0003 is narrow for completions of 25 tokens: the shorter they are, the more their ratios "
        'spread. Try 0.03 with epsilon_high = 0.04, which learned fastest at 16 and 64 tokens, or epsilon = "auto" alone, '
        "which finds a range itself"
    ]
    assert len(ranged(100.0)) == 1 and len(ranged(204.0, epsilon=3e-5, epsilon_high=4e-5)) == 1
    assert ranged(204.0) == ranged(100.0, epsilon=3e-3, epsilon_high=4e-3) == ranged(25.0, step=2) == []
    (text,) = ranged(2000.0, epsilon_length=100)  # however long they are, it is meant for 100 tokens
    assert "completions of 100 tokens" in text and ranged(25.0, epsilon_length=204) == []
    assert ranged(25.0, epsilon="auto") == ranged(25.0, name="grpo") == ranged(25.0, name="sapo") == []


def told(reward, text="no tags", steps=3, /, **sections):
    run, said = run_of(**sections)
    for _ in range(steps):
        advice.of_rewards(run, [group(text, reward, reward)])
    return said


def group(text, *rewards):
    prompt = Prompt("0", "", (1,))
    return Group(prompt, [replace(Rollout.begun(prompt), text=text, reward=reward) for reward in rewards])


GYM = {"task": {"source": "reasoning_gym:count_bits"}, "reward": {"functions": ["task"]}}


@pytest.mark.parametrize("sections", [{}, GYM])
def test_answers_without_the_tags_that_the_reward_reads(sections):
    assert told(0.0, "no tags", 2, **sections) == []
    (text,) = told(0.0, "no tags", 9, **sections)
    assert text.startswith(
        "in 3 steps every completion got the reward 0, so nothing was learned: 0% of the completions have"
    )
    for remedy in ('reward.functions = ["math"]', "an example of a whole reply into task.system", "gspo sft cold.toml"):
        assert remedy in text


@pytest.mark.parametrize(("text", "function"), [("<answer>7</answer>", "exact"), ("no tags", "math"), ("7", "mine:f")])
def test_wrong_answers_that_the_reward_could_read(text, function):
    (said,) = told(0.0, text, reward={"functions": [function]})
    assert "take easier prompts" in said and "gspo sft cold.toml" in said and "<answer>" not in said


def test_right_answers_and_rewards_that_differ():
    (said,) = told(1.0)
    assert "got the reward 1," in said and "take harder prompts" in said
    run, said = run_of()
    none, right = (0.0, 0.0), (1.0, 1.0)
    for rewards in (none, none, (0.0, 1.0), none, (None, None), none, (0.0, None), right, right):
        advice.of_rewards(run, [group("", *rewards)])
    assert said == [] and run.equal_steps == [1.0, 1.0]


def test_a_whole_run_says_both(tmp_path):
    def never(prompts, completions, **columns):
        return [0.0] * len(completions)

    made = train(tmp_path / "run", reward=never, train={"steps": 3}, eval={"every": 0})
    warned = [(line["step"], line["text"]) for line in lines(made.folder / "events.jsonl") if line["kind"] == "warning"]
    assert [step for step, text in warned if text.startswith("algorithm.epsilon = 0.0003 is narrow")] == [1]
    assert [step for step, text in warned if text.startswith("in 3 steps every completion got the reward 0")] == [3]
