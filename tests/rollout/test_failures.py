from dataclasses import replace

import pytest

from gspo.data.reward_bounds import NO_OPINION
from gspo.rewards.graders import CallFailed
from gspo.rollout.failures import FAILING, REMIND_AFTER, Failures, all_failed, commonest, errors, eval_errors, failed
from gspo.types import Group
from tests.data.tools import rollout


def batch(*errors):
    """A batch with a completion for each error; None: it has a reward."""
    made = [replace(rollout("a"), reward=1.0 if error is None else None, error=error) for error in errors]
    return [Group(one.prompt, [one]) for one in made]


def test_a_batch_that_failed_names_its_commonest_error():
    assert all_failed([]) == all_failed(batch(None, "x")) == ""
    why = all_failed(batch("f: one", "f: two", "f: two"))
    assert why == "none of 3 completions got a reward; the commonest reason, of 2 (67%): f: two; fix the reward function"
    assert all_failed(batch(f"f: {CallFailed.after(0.1)}")).endswith("fix the reward function, or raise reward.timeout")
    assert all_failed(batch(NO_OPINION)).endswith("scored it; return a number, 0 for a bad completion")
    assert commonest(errors(batch(None, None))) == ("", 0)


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
    for number, reasons in enumerate(steps, 1):
        why = failures.observe(batch(*reasons))
        if why:
            assert number == ends and ("steps in a row" in why) is (number > 1)
            return
    assert ends is None


def test_errors_that_differ_in_what_they_quote_are_of_one_kind():
    found = errors(batch(None, "f: lost", "f: lost", *(f"f: ValueError: could not read 'x{i}' at {i}e+3" for i in range(3))))
    assert commonest(found) == ("f: ValueError: could not read 'x0' at 0e+3", 3)
    assert commonest(errors(batch("f: can't", "f: can't go", *(f"f: bad 'cut off {word}" for word in "abc"))))[1] == 3
    scored = batch(None)[0].rollouts[0]
    unscored = [Group(scored.prompt, [replace(scored, reward_parts={"f": None, "g": 1.0})])]
    assert eval_errors(batch(None, "f: x") + unscored) == [None, "f: x", "the first reward function did not score it"]


def test_a_failing_part_of_a_step_is_told_again_only_after_a_while():
    """Whatever the completions are that its error quotes: but for numbers it reads as the first time."""
    failures, said = Failures(), []
    for step in range(1, REMIND_AFTER + 2):
        text, news = failures.report(errors(batch(None, f"f: bad '{step}'", f"f: bad '{step}'", "g: gone")), step)
        assert text == (
            f"step {step}: 3 of 4 completions got no reward; the commonest reason, of 2 (50%): f: bad '1'; fix the reward "
            "function"
        )
        said += [step] if news else []
    assert said == [1, REMIND_AFTER + 1]
    assert failures.report(errors(batch("g: gone", None)), REMIND_AFTER + 2)[1], "another error is news"
    assert failures.report(errors(batch(None, None)), REMIND_AFTER + 3) == ("", False)
