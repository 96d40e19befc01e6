"""Random conversations: every trained token is one that was sampled, after what was read then, with its own likelihood."""

import asyncio
import random

import pytest
import torch

from gspo.agents.calls import Call
from gspo.agents.matching import matched
from gspo.agents.token_tree import merge_turns
from gspo.agents.trajectories import History, Trajectory, TrajectoryGroup, plain
from gspo.data.messages import content_of
from gspo.types import Prompt, Rollout
from tests.agents.talking import TEMPLATES, TOOLS, WORDS, chat
from tests.campaign import CAMPAIGN

MANY = 1000 if CAMPAIGN else 150


def edited(rng, messages):
    """A history that a client changed: thinking taken out, messages summarised, a turn in other words."""
    messages = [dict(message) for message in messages]
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    kind = rng.choice(["think", "summary", "words"]) if turns else ""
    if kind == "think":
        for i in turns:
            messages[i]["content"] = content_of(messages[i]).split("</think>")[-1].strip()
    elif kind == "summary":
        messages = [{"role": "user", "content": "so far: much"}, *messages[rng.choice(turns) + 1 :]]
    elif kind == "words":
        messages[rng.choice(turns)]["content"] = "I said nothing of the kind"
    return messages


async def conversation(rng, talk):
    """What an agent would hand back, and the calls that it made."""
    tools = TOOLS if rng.random() < 0.6 else []
    items, others, sampled = [], [], []
    if rng.random() < 0.5:
        items.append({"role": "system", "content": "be " + rng.choice(WORDS.split())})
    items.append({"role": "user", "content": " ".join(rng.choices(WORDS.split(), k=4))})
    for _ in range(rng.randint(1, 5)):
        if rng.random() < 0.2:  # another history beside this one: a branch, or an edited one
            start = [plain(item) for item in items[: rng.randint(1, len(items))]]
            while len(start) > 1 and start[-1]["role"] == "assistant":
                start.pop()
            start = edited(rng, start) if rng.random() < 0.5 else start
            if start and start[-1]["role"] != "assistant" and start[0]["role"] != "tool":
                calls = await talk.turn(start, tools)
                sampled += calls
                others.append(History([*start, calls[0].message | {"id": calls[0].id}]))
        messages = [plain(item) for item in items]
        if rng.random() < 0.15:
            items = messages = edited(rng, messages)
        calls = await talk.turn(messages, tools, n=rng.choice([1, 1, 2]))
        sampled += calls
        chosen = rng.choice(calls)
        with_id = rng.random() < 0.5
        items = [*items, {"message": chosen.message, "id": chosen.id} if with_id else dict(chosen.message)]
        if chosen.message.get("tool_calls"):
            items.append({"role": "tool", "content": rng.choice(WORDS.split()), "tool_call_id": "x"})
        else:
            items.append({"role": "user", "content": "go on, " + rng.choice(WORDS.split())})
    return Trajectory(items, reward=rng.random(), additional_histories=others), sampled


def path(rollout, at):
    """The tokens up to place `at`, along the tree."""
    tokens = []
    while at >= 0:
        tokens.insert(0, int(rollout.tokens[at]))
        at = int(rollout.parent[at]) if rollout.parent is not None else at - 1
    return tokens


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_trained_token_of_some_conversations_was_sampled_after_what_it_stands_after(template):
    trained_after_what_was_read(template, range(12))


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_trained_token_was_sampled_after_what_it_stands_after(template):
    trained_after_what_was_read(template, range(MANY))


def trained_after_what_was_read(template, seeds):
    trained, branched = 0, 0
    for seed in seeds:
        rng, talk = random.Random(seed), chat(template, seed)
        trajectories, calls = zip(*(asyncio.run(conversation(rng, talk)) for _ in range(2)))
        result = matched([TrajectoryGroup(trajectories)], talk.calls, set(), 0)
        sampled = {call.id for those in calls for call in those}
        heard = [rollout for those in talk.completer.heard.values() for rollout in those]
        count = 0
        for rollout in (rollout for group in result.groups for rollout in group.rollouts):
            branched += rollout.parent is not None
            for turn in rollout.turn.unique().tolist():
                if turn < 0:
                    continue
                places = (rollout.turn == turn).nonzero()[:, 0]
                context = path(rollout, int(places[0]))[:-1]
                # exactly what the completer sampled, for the prompt that it read then
                ids, logp = rollout.tokens[places].tolist(), rollout.logp[places]
                assert any(
                    list(other.prompt.tokens) == context
                    and other.tokens[other.sampled].tolist() == ids
                    and torch.equal(other.logp[other.sampled], logp)
                    for other in heard
                )
                assert path(rollout, int(places[-1])) == context + ids  # one behind the other
                assert (rollout.version[places] == 3).all()
                assert rollout.sampled[places].all()
                count += 1
            assert int(rollout.sampled.sum()) == int((rollout.turn >= 0).sum())
        assert count == len(result.calls) and result.calls <= sampled
        trained += count
    assert trained > 10 * len(seeds) / 3 and branched > len(seeds) / 3


def turn(prompt, sampled, version, routes):
    """A call; the route of each of its tokens is one number, -1 unknown."""
    tokens = torch.tensor([*prompt, *sampled])
    chosen = torch.arange(len(tokens)) >= len(prompt)
    rollout = Rollout(
        Prompt("p", "", tuple(prompt)), tokens, chosen, torch.zeros(len(tokens)),
        torch.where(chosen, version, -1), "eos", routes=torch.tensor(routes, dtype=torch.int16)[:, None, None],
    )  # fmt: skip
    return Call("c", {}, "", "", rollout)


def test_routes_are_those_of_the_weights_that_sampled_or_unknown():
    """The second call has read all with weights 1 (routes of 20 and more); the first turn was sampled by weights 0, and what
    it chose was told for its second part alone.
    """
    first = turn([5, 6], [7, 8, 9], 0, [-1, -1, -1, 13, -1])
    second = turn([5, 6, 7, 8, 9, 4], [3, 2], 1, [20, 21, 22, 23, 24, 25, 26, -1])
    rollout = merge_turns(first.rollout.prompt, [(0, first), (1, second)])
    # 6 and 7 had a token sampled behind them by weights 0; 5 had none, and 9 is read by the second call first.
    assert rollout.tokens.tolist() == [5, 6, 7, 8, 9, 4, 3, 2]
    assert rollout.routes[:, 0, 0].tolist() == [20, -1, -1, 13, 24, 25, 26, -1]
