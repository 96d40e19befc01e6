from dataclasses import replace

import pytest

from gspo.data.bounds import NO_OPINION
from gspo.rewards.graders import Late
from gspo.rollout.failures import FAILING, Failures, all_failed, commonest, failed
from gspo.types import Group
from tests.data.tools import rollout


def batch(*errors):
    """A batch with a completion for each error; None: it has a reward."""
    made = [replace(rollout("a"), reward=1.0 if error is None else None, error=error) for error in errors]
    return [Group(one.prompt, [one]) for one in made]


def test_a_batch_that_failed_names_its_commonest_error():
    assert all_failed([]) == all_failed(batch(None, "x")) == ""
    why = all_failed(batch("f: one", "f: two", "f: two"))
    assert why == (
        "none of 3 completions got a reward, most of them for this reason: f: two; since all failed, mend what gives the "
        "reward"
    )
    assert all_failed(batch(f"f: {Late(0.1)}")).endswith("what gives the reward, or raise reward.timeout")
    assert all_failed(batch(NO_OPINION)).endswith("had an opinion: return a number, 0 for a bad completion")
    assert commonest([one.rollouts[0] for one in batch(None, None)]) == ""


def test_a_completion_without_a_first_value_counts_as_failed():
    (scored,) = batch(None)[0].rollouts
    assert not failed(scored) and not failed(replace(scored, reward_parts={"f": 0.0, "g": None}))
    assert failed(replace(scored, reward_parts={"f": None, "g": 1.0})) and failed(replace(scored, reward=None))


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([["f: x"]], 1), ([["f: x", None], ["f: x"] * 2, ["f: x"], ["f: x"]], 1 + FAILING),
        ([[None], ["f: x"], ["f: x"], ["f: x", None], ["f: x"], ["f: x"], ["f: x"]], 4 + FAILING),
        ([[NO_OPINION]] * 5, FAILING), ([[NO_OPINION], ["f: x"]], 2), ([[None], []] * 5, None),
    ],
)  # fmt: skip
def test_when_a_run_ends(steps, ends):
    """At its first step if a reward raises, else after several in a row."""
    failures = Failures()
    for number, errors in enumerate(steps, 1):
        why = failures.see(batch(*errors))
        if why:
            assert number == ends and ("steps in a row" in why) is (number > 1)
            return
    assert ends is None
