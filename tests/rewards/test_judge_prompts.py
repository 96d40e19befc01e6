import pytest

from gspo.config.rewards import JudgeConfig
from gspo.rewards import judge_prompts
from gspo.rewards.http_client import Unreadable

CONFIG = JudgeConfig(rubric="r", scale=10)


@pytest.mark.parametrize(
    "answer",
    [
        "", "7", '{"score": "7"}', '{"score": true}', '{"score": null}', '{"score": NaN}', '{"score": 11}', '{"score": -1}',
        '{"score": 7} or {"score": 9}', '{"grade": 7}', '["score", 7]', '{"score": 1e999}', "{" * 100_000 + "}",
    ],
)  # fmt: skip
def test_unreadable_scores(answer):
    asked = judge_prompts.scored(CONFIG, "q", "a", None)
    with pytest.raises(Unreadable):
        asked.read(judge_prompts.object_of(answer))


@pytest.mark.parametrize(
    "answer", ['{"score": 7}', '```json\n{"reason": "{}", "score": 7.0}\n```', '<think>{"score": 1}</think> {"score":7}']
)
def test_readable_scores(answer):
    assert judge_prompts.scored(CONFIG, "q", "a", None).read(judge_prompts.object_of(answer)) == 0.7


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("together", {"scores": {"1": 1}}), ("together", {"scores": [1, 2]}), ("together", {"scores": {"1": 1, "3": 2}}),
        ("together", {"scores": {"1": 1, "2": None}}), ("together", {}), ("ranked", {"ranks": {"1": 0, "2": 1}}),
        ("ranked", {"ranks": {"1": 1, "2": 3}}), ("paired", {"better": "a"}), ("paired", {"better": ["A"]}), ("paired", {}),
    ],
)  # fmt: skip
def test_unreadable_comparisons(name, answer):
    asked = {
        "together": judge_prompts.together(CONFIG, "q", ["a", "b"], None),
        "ranked": judge_prompts.ranked(CONFIG, "q", ["a", "b"], None),
        "paired": judge_prompts.paired(CONFIG, "q", "a", "b", None),
    }[name]
    with pytest.raises(Unreadable):
        asked.read(answer)
