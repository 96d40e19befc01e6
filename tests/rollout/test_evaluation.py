import pytest

import gspo
from tests import tiny_run


def evaluate(reward, **settings):
    tiny, config = tiny_run.model(), {"eval": settings, "rollout": {"max_completion_length": 4}}
    return gspo.evaluate(tiny.model, tiny_run.ROWS, reward, tokenizer=tiny.tokenizer, config=config)


@pytest.mark.parametrize("gives", ["raises", "None"])
def test_a_grader_that_fails_on_wrong_completions_does_not_raise_the_accuracy(gives):
    """It scores what is right alone: what it does not score counts as wrong, and is counted."""

    def picky(prompts, completions, **columns):
        if gives == "raises" and (len(completions) > 1 or "a" not in completions[0]):
            raise ValueError("no a")
        return [1.0 if "a" in completion else None for completion in completions]

    metrics, groups = evaluate(picky, num_generations=2)
    right = [["a" in rollout.text for rollout in group.rollouts] for group in groups]
    assert 0 < sum(map(sum, right)) < 80
    assert metrics["eval/accuracy"] == pytest.approx(sum(map(sum, right)) / 80)
    assert metrics["eval/failed"] == 80 - sum(map(sum, right))


def test_an_evaluation_without_any_score_is_an_error():
    with pytest.raises(RuntimeError, match=r"none of 40 completions got a reward; .*ZeroDivisionError"):
        evaluate(lambda completions: 1 / 0)
