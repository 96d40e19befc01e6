"""DAPO's penalty for length against its equation, and in the batches of both sources."""

import dataclasses

from gspo.config.rollout import RolloutConfig
from gspo.rollout.overlong import penalised
from gspo.rollout.synchronous import SynchronousSource
from gspo.types import Sampling
from tests.rollout import test_asynchronous as ahead
from tests.rollout import test_synchronous as in_turn
from tests.rollout.test_credit import rollout


def test_the_reward_falls_linearly_over_the_last_tokens():
    config = RolloutConfig(max_completion_length=20, overlong_buffer=8)
    for length in range(1, 21):
        expected = (20 - 8 - length) / 8 if length > 20 - 8 else 0.0  # DAPO, equation 13
        (one,) = penalised([rollout(0.5, n=length)], config)
        assert one.reward == 0.5 + expected and one.reward_parts == {"f": 0.5, "overlong": expected}
        assert one.reward_weights[-1] == 1.0
    assert penalised([rollout(1.0, n=20)], config)[0].reward == 0.0
    assert penalised([rollout(None, n=20)], config)[0].reward is None  # failed, and so left out
    assert penalised([rollout(1.0, n=20)], RolloutConfig(max_completion_length=20))[0].reward_parts == {"f": 1.0}


def test_both_sources_penalise():
    """In turn all completions have 3 tokens. Ahead, one in eight has 200 of at most 204 tokens, the others have 4."""
    limits = RolloutConfig(num_prompts=2, num_generations=3, max_completion_length=4, overlong_buffer=2)
    groups = iter(SynchronousSource(in_turn.Stream(), in_turn.Echo(), in_turn.Ones(), limits, Sampling(4)))
    assert [r.reward for _ in range(2) for r in next(groups).rollouts] == [1 - 1 / 2] * 6

    engine = ahead.Engine(speed=200)
    source = ahead.source_of(engine, ahead.stream(ahead.prompts(20)), 1)
    source.config = dataclasses.replace(source.config, max_completion_length=204, overlong_buffer=8)
    for group in ahead.steps(source, engine, 1)[0]:
        for one in group.rollouts:
            assert one.reward == (0.5 if one.sampled.sum() == 200 else 1.0)
            assert one.reward_parts["overlong"] == one.reward - 1
