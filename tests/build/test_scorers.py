"""Who scores, by the configuration."""

import pytest

from gspo.build.given import Given, configured
from gspo.build.scorers import scorer_of
from gspo.rewards.scorer import Rewards
from gspo.rollout.external import AlreadyScored
from tests import tiny_run


def made(folder, **sections):
    tiny = tiny_run.model()
    return configured(tiny_run.settings(folder, **sections), {}, tiny.model, tiny.tokenizer, tiny_run.ROWS)


def test_rewards_score_where_there_is_no_environment(tmp_path):
    with scorer_of(made(tmp_path / "run"), Given(functions=[tiny_run.likes_a])) as scorer:
        assert isinstance(scorer, Rewards)


def test_an_environment_scores_in_place_of_rewards(tmp_path):
    task = {"environment": "tests.build.test_samplers:Room"}
    config = made(tmp_path / "run", task=task)
    with scorer_of(config, Given()) as scorer:
        assert isinstance(scorer, AlreadyScored)
    with (
        pytest.raises(ValueError, match="reward: has no effect, the environment gives the reward itself"),
        scorer_of(config, Given(functions=[tiny_run.likes_a])),
    ):
        pass
