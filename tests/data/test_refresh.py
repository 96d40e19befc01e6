"""The queries of a source: their order, what is dropped and returns, and what a checkpoint holds of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.config.stages import RefreshConfig
from gspo.data import refresh
from gspo.data.prompts import PromptStream
from gspo.data.refresh import Change, Pool
from gspo.types import Prompt

RULES = RefreshConfig(every=1, drop_above=0.8, drop_below=0.2)


def pool(n=6, **given):
    return Pool("train", [Prompt(f"train-{i}", f"say {i}", (i,)) for i in range(n)], 0, **given)


def seen(made, *marks, scored=4):
    """Each query's group with so many correct completions; None: it was not seen."""
    for number, correct in enumerate(marks):
        if correct is not None:
            made.observe(made.prompts[number], scored, correct)
    return made


def test_without_a_refresh_the_order_is_that_of_a_stream_of_prompts():
    for n in (1, 2, 7):
        made, stream = pool(n), PromptStream(range(n), 0)
        assert [prompt.tokens[0] for k in (1, 5, 2 * n) for prompt in made.take(k)] == stream.take(6 + 2 * n)


def test_a_checkpoint_does_not_read_all_prompts_again(monkeypatch):
    made = pool()
    state = made.state_dict()
    monkeypatch.delattr(refresh, "digest")
    assert made.state_dict() == state
    made.load_state_dict(state)


def test_what_is_dropped_by_hand():
    made = seen(pool(), 4, 3, 2, 1, 0, None)
    assert made.refresh(5, RULES, 1) == Change(dropped=2, returned=0, spared=0)
    assert made.resting == {0: 5, 4: 5} and made.active == [1, 2, 3, 5]
    assert made.counts() == {"queries/active": 4, "queries/resting": 2, "queries/unseen": 1}
    assert {prompt.tokens[0] for prompt in made.take(40)} == {1, 2, 3, 5}


def test_the_limits_themselves_stay():
    rules = RefreshConfig(every=1, drop_above=0.75, drop_below=0.25)
    assert seen(pool(2), 3, 1).refresh(1, rules, 1) == Change()
    assert seen(pool(2), 4, 0).refresh(1, RefreshConfig(), 1) == Change()  # 1 and 0 drop nothing


def test_each_pass_asks_for_every_active_query_once():
    made = seen(pool(8), 4, None, None, None, 0)
    made.take(3)
    made.refresh(1, RULES, 1)
    while made.cursor % 8:
        made.take(1)
    for _ in range(3):
        assert sorted(prompt.tokens[0] for prompt in made.take(6)) == [1, 2, 3, 5, 6, 7]


def test_a_query_is_judged_by_the_scored_groups_since_it_was_judged_last():
    made = seen(pool(2), 2)
    made.refresh(1, RULES, 1)
    assert seen(made, 4).refresh(2, RULES, 1).dropped == 1  # 6 of 8 in all, 4 of 4 since
    rules = RefreshConfig(every=1, drop_above=0.8, min_seen=2)
    made = seen(pool(3), 4, 4)
    made.observe(made.prompts[1], 4, 4)
    made.observe(made.prompts[2], 0, 0)  # no reward in the whole group: nothing is known of it
    assert made.refresh(1, rules, 1).dropped == 1 and made.resting == {1: 1}
    assert made.counts()["queries/unseen"] == 0


def test_dropped_queries_return_and_are_judged_anew():
    rules = RefreshConfig(every=2, drop_above=0.8, return_after=3)
    made = seen(pool(3), 4)
    made.refresh(2, rules, 1)
    assert made.refresh(4, rules, 1) == Change() and made.resting == {0: 2}
    assert made.refresh(6, rules, 1) == Change(returned=1) and made.active == [0, 1, 2]
    assert seen(made, 4).refresh(8, rules, 1).dropped == 1
    assert seen(pool(3), 4).refresh(100, RULES, 1).returned == 0


def test_groups_in_flight_when_their_query_was_dropped_do_not_drop_it_again():
    rules = RefreshConfig(every=2, drop_above=0.8, return_after=3)
    made = seen(pool(3), 4)
    made.refresh(2, rules, 1)
    seen(made, 4)
    assert made.refresh(6, rules, 1) == Change(returned=1)


def test_what_a_rewound_policy_answered_counts_no_more():
    made = seen(pool(), 2, 0, None)
    good = made.state_dict()
    seen(made, 0, 0, 0)
    made.refresh(5, RULES, 1)
    assert made.resting
    cursor = made.cursor
    made.forget(good)
    assert (made.state_dict()["seen"], made.resting, made.cursor) == (good["seen"], {}, cursor)
    made.forget(None)  # the pool began after that state
    assert not made.seen and not made.resting


def test_keep_spares_those_nearest_to_the_limits():
    made = seen(pool(4), 10, 9, 1, 10, scored=10)
    assert made.refresh(1, RULES, 3) == Change(dropped=1, spared=3)
    assert made.resting == {0: 1}  # 0 and 3 are farthest; of equals the first
    made = seen(pool(4), 4, 4, 0, 0)
    assert made.refresh(1, RULES, 4) == Change(spared=4) and made.active == [0, 1, 2, 3]


def test_equal_rows_are_one_query_and_other_answers_make_another():
    rows = [((1,), "a"), ((1,), "a"), ((1,), "b"), ((2,), "a")]
    made = Pool("train", [Prompt(f"train-{i}", "", ids, {"answer": a}) for i, (ids, a) in enumerate(rows)], 0)
    assert made.queries == [0, 2, 3]
    made.observe(made.prompts[1], 4, 4)
    assert made.refresh(1, RULES, 1).dropped == 1
    assert {prompt.id for prompt in made.take(20)} == {"train-2", "train-3"}


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=30), st.integers(0, 30), st.integers(1, 6))
def test_a_resumed_pool_goes_on_alike_and_never_falls_below_keep(groups, cut, keep):
    rules = RefreshConfig(every=1, drop_above=0.7, drop_below=0.3, return_after=4)

    def play(made, part, begin):
        found = []
        for step, (number, correct) in enumerate(part, begin):
            made.observe(made.prompts[number], 4, correct)
            change = made.refresh(step, rules, keep)
            assert len(made.active) >= keep
            found.append((change, [prompt.id for prompt in made.take(2)], made.counts()))
        return found

    made = pool()
    whole = play(pool(), groups, 1)
    first = play(made, groups[:cut], 1)
    again = pool()
    again.load_state_dict(made.state_dict())
    assert first + play(again, groups[cut:], len(first) + 1) == whole


def test_the_state_is_plain_and_belongs_to_these_prompts(tmp_path):
    made = seen(pool(), 4, 0, 2)
    made.take(3)
    made.refresh(1, RULES, 1)
    torch.save(made.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    again = pool()
    again.load_state_dict(state)
    assert again.state_dict() == made.state_dict()
    with pytest.raises(ValueError, match="the prompts of train are not those that this run has been trained on"):
        pool(5).load_state_dict(state)
