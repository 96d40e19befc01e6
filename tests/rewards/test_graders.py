import asyncio
import re
from decimal import Decimal

import pytest

import gspo
from gspo.config.rewards import CodeConfig, RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import graders
from gspo.rewards.scorer import Rewards
from tests.data.tools import rollout
from tests.rewards.graders import compares
from tests.rewards.tools import in_process, named, outcome


def test_the_reasoning_gym_scorer():
    entry = {"question": "?", "answer": "8", "metadata": {}}
    task = TaskConfig(source="reasoning_gym:count_bits")
    texts = ["<answer>8</answer>", "8", "<answer>9</answer>", "<think>1</think><answer> 8 </answer>", "<answer></answer>"]
    with Rewards(RewardConfig(), task) as rewards:
        scored = rewards.score([rollout(text, task=task.source, **entry) for text in texts])
    assert [r.reward for r in scored] == [1, 0, 0, 1, 0]
    assert scored[0].reward_parts == {"task": 1.0} and scored[0].error is None


def test_the_scorer_of_a_stages_task():
    entry = {"question": "?", "answer": "8", "metadata": {}}
    with Rewards(RewardConfig(), TaskConfig(source="reasoning_gym:count_bits")) as rewards:
        scored = rewards.score([rollout("<answer>8</answer>", task="reasoning_gym:gcd", **entry)])
    assert [(r.reward, r.error) for r in scored] == [(1.0, None)]


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        (" 42\n", "42", 1), ("it is 42", "42", 0), ("<answer>1</answer> no, <answer> 42 </answer> bye", "42", 1),
        ("<answer>42", "42", 0), ("<think>7</think>42", "42", 1), ("<think>42", "42", 0), ("42", 42.0, 1), ("42.00", 42, 1),
        ("0.5", Decimal("0.50"), 1), ("43", 42, 0), ("many", 42, 0), ("42.0", "42", 0),
        ("72", "half of it\n#### 72", 1), ("#### 72", "72", 0), ("Paris", "paris", 0), ("New York", "NewYork", 0),
    ],
)  # fmt: skip
def test_exact(completion, answer, right):
    score = graders.load("exact", RewardConfig(functions=["exact"]), TaskConfig(), CodeConfig()).score
    assert score(graders.RewardInput("?", completion, "", {"answer": answer})) == right


def test_thinking_that_the_prompt_opened_is_not_graded():
    wrong = ["Is it <answer>42</answer>? Let me", "42", "", "<think>42", "<answer>42</answer></think> It is 7."]
    right = ["7? No.</think><answer>42</answer>", "7</think> 8 <think> 9 </think><answer>42</answer>"]
    source, columns = "reasoning_gym:count_bits", {"question": "?", "answer": "42", "metadata": {}}
    with named("task", "exact", "math", source=source) as rewards:
        scored = rewards.score(
            [rollout(completion, 0, source, opens_thinking=True, **columns) for completion in wrong + right]
        )
        closed = rewards.score([rollout(wrong[0], 0, source, **columns)])
    assert [list(r.reward_parts.values()) for r in scored] == [[0, 0, 0]] * 5 + [[1, 1, 1]] * 2
    assert list(closed[0].reward_parts.values()) == [1, 1, 1]


def test_closures_lambdas_and_async_functions():
    calls = []

    def closure(prompts, completions, **columns):
        calls.append((prompts, columns))
        return [1, None]

    async def judge(prompts, completions, answer):
        await asyncio.sleep(0.01)
        return [float(c == a) for c, a in zip(completions, answer)]

    rewards = in_process(closure, judge, lambda prompts, completions: [0.5] * len(completions))
    with rewards:
        scored = rewards.score([rollout("a", prompt="p", answer="a"), rollout("b", prompt="q", answer="a", extra=3)])
    assert [r.reward_parts for r in scored] == [
        {"closure": 1, "judge": 1, "lambda": 0.5},
        {"closure": None, "judge": 0, "lambda": 0.5},
    ]
    assert [r.reward for r in scored] == [2.5, 0.5]
    ((prompts, columns),) = calls
    assert prompts == ["p", "q"]
    assert columns == {"answer": ["a", "a"], "extra": [None, 3]}  # and no more


def test_a_function_may_have_time_outs_of_its_own():
    """They are failures like others: the call did not exceed reward.timeout."""

    async def judge(prompts, completions, **columns):
        if "x" in completions:
            raise TimeoutError("the judge's line is busy")
        return [1.0] * len(completions)

    with in_process(judge) as rewards:
        scored = rewards.score([rollout("1"), rollout("x")])
        assert re.fullmatch(r"judge: TimeoutError: the judge's line is busy \(test_graders\.py:\d+\)", scored[1].error)
        assert rewards.modes["judge"].level == graders.BATCH


def test_a_function_by_group_sees_whole_groups_alone():
    assert outcome(named("compares", workers=2), *"abcdefghabcdefgh")[0] == [0, 1, 2, 3] * 4


@pytest.mark.parametrize("made", [lambda: named("compares", workers=2), lambda: in_process(compares)])
def test_groups_of_the_same_prompt_are_apart(made):
    with made() as rewards:
        scored = rewards.score(list(map(rollout, "abcdefghi")), groups=[0] * 4 + [1] * 4 + [2])
        assert [each.reward for each in scored] == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_async_groups_are_scored_at_the_same_time():
    at_work, most = 0, 0

    @gspo.by_group
    async def compares(prompts, completions, **columns):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.05)
        at_work -= 1
        if "f" in completions:
            raise ConnectionError
        return [float(sorted(completions).index(c)) for c in completions]

    assert outcome(in_process(compares), *"abcdefgh")[0] == [0, 1, 2, 3] + [None] * 4
    assert most == 2


def test_what_a_function_changes_no_other_call_sees():
    """Not its next call, not the other functions, not the completions to the same prompt, not the row itself."""

    def changes(prompts, completions, parts):
        seen = [len(part["list"]) for part in parts]
        for prompt, part in zip(prompts, parts):
            part["list"].append(1)
            prompt.clear()
        if len(completions) > 1:
            raise ValueError("one by one, please")
        return seen

    def counts(prompts, completions, parts):
        return [len(part["list"]) + len(prompt) for prompt, part in zip(prompts, parts)]

    row = {"list": [0]}
    completions = [rollout("a", prompt=[{"role": "user", "content": "?"}], parts=row) for _ in range(2)]
    with in_process(changes, counts) as rewards:
        for _ in range(2):
            assert [list(r.reward_parts.values()) for r in rewards.score(completions)] == [[1, 2]] * 2
    assert row == {"list": [0]} and len(completions[0].prompt.messages) == 1
