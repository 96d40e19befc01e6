"""Trajectories -> rollouts: finds the sampled tokens of each. Unmatched turns are left out, counted and logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gspo.agents.calls import Call, Calls, follow
from gspo.agents.token_tree import merge_turns
from gspo.agents.trajectories import TrajectoryGroup, id_of, plain
from gspo.data.messages import content_of, functions_of
from gspo.data.reward_bounds import LARGEST, invalid
from gspo.types import Group, Prompt, Rollout

UNKNOWN = "its id is of no call that is known: another model's, of another run, or of weights long gone"
NONE = "no turn of the policy after these messages reads like it"
OLD = "the weights that sampled it are too old"
ALONE = "there is no other in its group to compare its reward with"
INVALID = f"a reward that is no finite number of at most {LARGEST:g}"
FAILED = "the agent ended in an exception"
TWICE = "it was in another trajectory, or trained on, before"


@dataclass
class Matched:
    """The result of matching trajectories with stored calls."""

    groups: list[Group] = field(default_factory=list)  # with something to train on
    left_out: Counter[str] = field(default_factory=Counter)  # number of turns left out, by reason
    unusable: Counter[str] = field(default_factory=Counter)  # number of trajectories left out, by reason
    calls: set[str] = field(default_factory=set)  # ids of the calls to train on

    def reasons(self) -> str:
        """Everything that was left out, as text."""
        reasons = [f"{count} turns: {why}" for why, count in self.left_out.items()]
        reasons += [f"{count} trajectories: {why}" for why, count in self.unusable.items()]
        return "; ".join(reasons)


def matched(groups: Iterable[TrajectoryGroup], calls: Calls, trained: set[str], oldest: int) -> Matched:
    """Converts groups of trajectories to groups of rollouts. trained: ids of calls that were trained on before. oldest: the
    oldest weight version whose tokens may be trained on.
    """
    result, groups = Matched(), list(groups)
    named = {id_of(item) for group in groups for one in group for history in _histories(one) for item in history}
    for number, group in enumerate(groups):
        result.unusable += Counter({FAILED: len(group.exceptions)})
        before = set(result.calls)
        rollouts = [
            _rollout(f"group {number}", trajectory, _Reading(calls, trained | result.calls, named, oldest), result)
            for trajectory in group
        ]
        usable = [rollout for rollout in rollouts if rollout is not None]
        if len(usable) == 1:
            result.unusable[ALONE] += 1
            result.calls = before
        elif usable:
            result.groups.append(Group(usable[0].prompt, usable))
    return result


def _histories(trajectory: Any) -> list[Sequence[Any]]:
    """The conversations of a trajectory, the main one first."""
    more = getattr(trajectory, "additional_histories", None) or ()
    return [history.messages_and_choices for history in (trajectory, *more)]


def _rollout(name: str, trajectory: Any, reading: _Reading, result: Matched) -> Rollout | None:
    """A trajectory as a rollout, or None if nothing in it can be trained on."""
    reward, by_turn = float(trajectory.reward), getattr(trajectory, "turn_rewards", None)
    if any(map(invalid, (reward, *(by_turn or ()), reward + sum(by_turn or ())))):
        result.unusable[INVALID] += 1
        return None
    for history in _histories(trajectory):
        reading.history(history, by_turn or ())
    if by_turn is not None and len(by_turn) != reading.turns:
        result.unusable[f"{len(by_turn)} turn_rewards for {reading.turns} turns"] += 1
        return None
    result.left_out += reading.left_out
    if not reading.chosen:
        result.unusable["none of its turns can be trained on"] += 1
        return None
    result.calls |= {call.id for _, call in reading.chosen}
    first = reading.chosen[0][1]
    rollout = merge_turns(Prompt(name, first.rollout.prompt.messages, first.rollout.prompt.tokens), reading.chosen)
    return replace(
        rollout,
        reward=reward + sum(by_turn or ()),
        turn_rewards=None if by_turn is None else (*map(float, by_turn[:-1]), float(by_turn[-1]) + reward),
        dialogue=tuple(reading.dialogue),
        text=reading.chosen[-1][1].words,
        reward_parts={key: float(value) for key, value in trajectory.metrics.items()},
    )


class _Reading:
    """Reads the histories of one trajectory in order. `chosen` holds the calls to train on, each with its turn's index.

    Args:
        used: Ids of calls that were trained on, or are in another trajectory.
        named: Ids that are given anywhere, and so are of no message without one.
        oldest: The oldest weight version whose tokens may be trained on.
    """

    def __init__(self, calls: Calls, used: set[str], named: set[str | None], oldest: int) -> None:
        self.calls, self.used, self.named, self.oldest = calls, used, named, oldest
        self.turns = 0
        self.chosen: list[tuple[int, Call]] = []
        self.left_out: Counter[str] = Counter()
        self.dialogue: list[dict[str, Any]] = []
        self._seen: set[bytes | str] = set()  # conversation hashes, and ids of calls

    def history(self, items: Sequence[Any], rewards: Sequence[float]) -> None:
        """Reads a conversation. What an earlier history already contained is not logged or counted again."""
        trace = b""
        for item in items:
            message = plain(item)
            trace = follow(trace, message)
            id, is_turn = id_of(item), message["role"] == "assistant"
            call = self.calls.get(id) if id is not None and is_turn else None
            key = trace if call is None else call.id
            if key in self._seen:
                continue
            self._seen |= {key, trace}
            entry: dict[str, Any] = {"role": message["role"], "content": content_of(message)}
            if functions := functions_of(message):
                entry["tool_calls"] = functions
            if is_turn:
                call = call or self._like(trace)
                entry |= self._turn(call, UNKNOWN if id is not None else NONE)
                if self.turns <= len(rewards):
                    entry["reward"] = rewards[self.turns - 1]
            self.dialogue.append(entry)

    def _turn(self, call: Call | None, why: str) -> dict[str, Any]:
        """why: why there is no call."""
        turn, self.turns = self.turns, self.turns + 1
        if call is not None:
            self._seen.add(call.id)
            why = self._untrainable(call)
        if call is None or why:
            self.left_out[why] += 1
            return {"left_out": why}
        self.chosen.append((turn, call))
        return {"turn": turn}

    def _like(self, trace: bytes) -> Call | None:
        """A call for a turn without a known id: the oldest of those that sampled these words after these messages and is
        free. They are alike, so it does not matter which trajectory has which.
        """
        found = self.calls.ending(trace)[::-1]
        free = [call for call in found if call.id not in self.named | self._seen and not self._untrainable(call)]
        return next(iter(free or found), None)

    def _untrainable(self, call: Call) -> str:
        """Why a call cannot be trained on; empty if it can."""
        versions = call.rollout.version[call.rollout.sampled]
        return call.untrainable or (TWICE if call.id in self.used else OLD if int(versions.min()) < self.oldest else "")
