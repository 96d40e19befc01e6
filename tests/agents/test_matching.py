"""Trajectories that do not match, or are worth nothing that can be told: left out, counted and named; the rest is kept."""

import asyncio
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gspo.agents import matching
from gspo.agents.matching import INVALID, matched
from gspo.agents.trajectories import History, Trajectory, TrajectoryGroup
from tests.agents.talking import chat
from tests.agents.tools import ASK, choice, talked


def group(*trajectories):
    return TrajectoryGroup(trajectories)


def found_in(talk, *groups, trained=(), oldest=0):
    return matched(groups, talk.calls, set(trained), oldest)


def pair(talk, trajectory):
    """A group of this trajectory and of one with which nothing is wrong."""
    ask = [{"role": "user", "content": f"what else {len(talk.calls)}"}]
    (call,) = asyncio.run(talk.turn(ask))
    return group(trajectory, Trajectory([*ask, replace_version(talk, call)], 0.0))


def replace_version(talk, call):
    """A choice of the newest weights, so that it is never too old."""
    rollout = replace(call.rollout, version=torch.where(call.rollout.sampled, 99, -1))
    talk.calls.add(replace(call, rollout=rollout))
    return choice(call)


def first(result):
    return result.groups[0].rollouts[0]


def test_a_conversation_is_one_row_of_its_tokens():
    talk = chat(seed=2)
    items, calls = talked(talk, 3)
    rollout = first(found_in(talk, pair(talk, Trajectory(items, 2.0, metrics={"m": 1}))))
    assert rollout.reward == 2.0 and rollout.reward_parts == {"m": 1.0} and rollout.turn_rewards is None
    last = calls[-1].rollout
    if rollout.parent is None:
        assert torch.equal(rollout.tokens, last.tokens)
    assert int(rollout.sampled.sum()) == sum(call.sampled for call in calls)
    assert [message.get("turn") for message in rollout.dialogue] == [None, 0, None, 1, None, 2]


def test_choices_and_responses_name_their_call():
    talk = chat(seed=2)
    _, (call,) = talked(talk)
    _, (two,) = talked(talk)
    response = SimpleNamespace(choices=[choice(two)])
    result = found_in(talk, group(Trajectory([*ASK, choice(call)], 1.0), Trajectory([*ASK, response], 0.0)))
    assert result.calls == {call.id, two.id} and not result.reasons()


def test_rewards_by_turn():
    talk = chat(seed=2)
    items, _ = talked(talk, 2)
    rollout = first(found_in(talk, pair(talk, Trajectory(items, 1.0, turn_rewards=[0.5, 0.25]))))
    assert rollout.turn_rewards == (0.5, 1.25) and rollout.reward == 1.75
    assert [message["reward"] for message in rollout.dialogue if "turn" in message] == [0.5, 0.25]
    result = found_in(talk, group(Trajectory(items, 1.0, turn_rewards=[0.5])))
    assert result.unusable == Counter({"1 turn_rewards for 2 turns": 1}) and not result.groups and not result.calls


def test_histories_share_what_they_have_in_common():
    talk = chat(seed=2)
    items, calls = talked(talk, 2)
    (other,) = asyncio.run(talk.turn([*items[:2], {"role": "user", "content": "no, the other"}]))
    branch = History([*items[:2], {"role": "user", "content": "no, the other"}, choice(other)])
    result = found_in(talk, pair(talk, Trajectory(items, 1.0, additional_histories=[branch])))
    assert not result.left_out and result.calls > {call.id for call in (*calls, other)}
    rollout = first(result)
    assert int(rollout.sampled.sum()) == sum(call.sampled for call in (*calls, other))
    assert sum(row["role"] == "assistant" for row in rollout.dialogue) == 3


def branched(talk):
    """A conversation of two turns, its first call, and another that begins like it."""
    items, (call, _) = talked(talk, 2)
    (other,) = asyncio.run(talk.turn([*items[:2], {"role": "user", "content": "no, the other"}]))
    return items, call, [*items[:2], {"role": "user", "content": "no, the other"}, replace_version(talk, other)]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("bare", [(), ("main",), ("branch",), ("main", "branch")])
def test_a_turn_that_is_left_out_is_counted_once(known, bare):
    """bare: histories in which it is a message without its id."""
    talk = chat(seed=2)
    items, call, branch = branched(talk)
    if known:
        talk.calls.add(replace(call, untrainable="sampled at temperature 0.5"))
    else:
        talk.calls.evict(4)  # all but that of the branch
    main = [items[0], call.message if "main" in bare else choice(call), *items[2:]]
    branch[1] = call.message if "branch" in bare else choice(call)
    rewarded = Trajectory(main, 1.0, turn_rewards=[0.0, 0.25, 0.5], additional_histories=[History(branch)])
    result = found_in(talk, pair(talk, rewarded))
    rollout = first(result)
    assert not result.unusable and sum(result.left_out.values()) == (1 if known else 2)
    assert rollout.reward == 1.75 and [row["reward"] for row in rollout.dialogue if "reward" in row] == [0.0, 0.25, 0.5]
    said = [row["content"] for row in rollout.dialogue]
    assert len(said) == 6 and said.count(items[0]["content"]) == 1  # what both begin with is told once


def test_two_turns_in_the_same_words_are_two_where_their_ids_say_so():
    talk = chat(seed=2)
    _, (call,) = talked(talk)
    talk.calls.add(replace(call, id="again"))
    again = choice(replace(call, id="again"))
    two = Trajectory([*ASK, choice(call)], 1.0, turn_rewards=[0.0, 0.0], additional_histories=[History([*ASK, again])])
    result = found_in(talk, pair(talk, two))
    assert result.calls > {call.id, "again"} and not result.reasons()


def test_what_is_left_out_and_why():
    talk, other = chat(seed=2), chat(seed=3)
    items, (call,) = talked(talk)
    made_up = [*ASK, {"role": "assistant", "content": "I made this up"}]
    elsewhere = choice(replace(talked(other)[1][0], id="chatcmpl-elsewhere"))
    for trajectory, options, why in (
        (Trajectory(made_up, 1.0), {}, matching.NONE),
        (Trajectory([*ASK, elsewhere], 1.0), {}, matching.UNKNOWN),
        (Trajectory(items, 1.0), {"oldest": 4}, matching.OLD),
        (Trajectory(items, 1.0), {"trained": [call.id]}, matching.TWICE),
    ):
        assert found_in(talk, group(trajectory), **options).left_out == Counter({why: 1})
    twice = found_in(talk, pair(talk, Trajectory(items, 1.0)), group(Trajectory(items, 0.0)))
    assert len(twice.groups) == 1 and twice.left_out == Counter({matching.TWICE: 1})
    talk.calls.add(replace(call, untrainable="sampled at temperature 0.5"))
    untrainable = found_in(talk, group(Trajectory([*ASK, choice(call)], 1.0)))
    assert untrainable.left_out == Counter({"sampled at temperature 0.5": 1})


def test_messages_in_the_same_words_are_as_many_turns_as_were_sampled():
    """Otherwise what is most often right would be left out, and the rare words remain."""
    talk = chat(seed=2)
    items, (call,) = talked(talk)
    older = replace(call.rollout, version=call.rollout.version - 1)
    alike = [call, replace(call, id="1"), replace(call, id="2"), replace(call, id="old", rollout=older)]
    talk.calls.add(*alike[1:], replace(call, id="hot", untrainable="sampled at temperature 0.5"))
    named = Trajectory([*items[:-1], choice(alike[1])], 0.0)
    result = found_in(talk, group(Trajectory(items, 1.0), named, Trajectory(items, 1.0)), oldest=3)
    assert result.calls == {call.id, "1", "2"} and not result.reasons()  # the one that is named is taken by no other
    result = found_in(talk, group(*[Trajectory(items, 1.0)] * 4), oldest=2)
    assert len(result.calls) == 4 and not result.reasons()
    result = found_in(talk, group(*[Trajectory(items, 1.0)] * 4), oldest=3)
    assert len(result.calls) == 3 and result.left_out == Counter({matching.TWICE: 1})
    branch = Trajectory(items, 1.0, additional_histories=[History(items)])
    assert len(found_in(talk, group(branch, Trajectory(items, 0.0))).calls) == 2  # what a history repeats is one turn


def test_trajectories_that_are_unusable():
    talk = chat(seed=2)
    made_up = [*ASK, {"role": "assistant", "content": "I made this up"}]
    result = found_in(talk, group(Trajectory(made_up, 1.0)), group(Trajectory(ASK, 1.0)), group())
    assert result.unusable == Counter({"none of its turns can be trained on": 2}) and not result.groups
    assert "2 trajectories: none of its turns" in result.reasons()
    result = found_in(talk, group(*pair(talk, Trajectory([], math.nan)), *pair(talk, Trajectory([], math.inf))))
    assert result.unusable == Counter({INVALID: 2}) and len(result.groups[0].rollouts) == 2
    huge = group(Trajectory(talked(talk)[0], 1e308, turn_rewards=[1e308]))
    assert found_in(talk, huge).unusable == Counter({INVALID: 1})
    result = found_in(talk, group(Trajectory(talked(talk)[0], 1.0)))
    assert result.unusable == Counter({matching.ALONE: 1}) and not result.groups and not result.calls
    result = found_in(talk, group(ValueError("the agent fell over"), *pair(talk, Trajectory(talked(talk)[0], 1.0))))
    assert result.unusable[matching.FAILED] == 1 and len(result.groups[0].rollouts) == 2


def test_what_is_no_message():
    for item, why in (
        (5, "holds an int"),
        ({"role": "assistant", "content": "", "tool_calls": [{"function": 5}]}, "a tool call that is none"),
        ({"content": "x"}, "no role"),
    ):
        with pytest.raises(ValueError, match=why):
            found_in(chat(), group(Trajectory([*ASK, item], 1.0)))
