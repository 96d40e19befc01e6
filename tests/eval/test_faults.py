from concurrent.futures import Future

import pytest

from gspo.eval.endpoint import EndpointReply
from gspo.eval.faults import named
from gspo.eval.replies import Lines, Reply
from gspo.eval.sampling import missing_keys, sample, shuffle_problems
from gspo.rewards.http_client import Failed, Unreadable
from gspo.types import Prompt


def served(tmp_path, fate, problems=40, n=8, most=4, again=False, each=False, name="replies"):
    """Replies to problems whose requests end as `fate(problem, number of reply)` says: an error, or None for a reply. What
    was asked for.
    """
    asked = []

    def begin(key):
        asked.append(key[0])
        future = Future()
        error = fate(int(key[0]), key[1])
        future.set_result(EndpointReply("here", 1, "eos")) if error is None else future.set_exception(error)
        return future

    prompts = [Prompt(str(i), "?", ()) for i in range(problems)]
    with Lines(tmp_path / f"{name}.jsonl", Reply) as replies:
        todo = list(missing_keys(prompts, n, replies.lines))
        faults = sample(
            replies, shuffle_problems(todo) if again else todo, begin, most, lambda phase, done, total: None, each
        )
        return faults, asked, len(replies.lines)


def test_problems_are_named_in_their_order_whichever_ended_first():
    assert named("b") == "problem b" and named("gcafbed") == "problems a, b, c, d, e and 2 more"
    assert named({"b": "HTTP 1", "a": "HTTP 2"}) == "problems a, b (HTTP 2)"


LATE, WITHIN, LOST = Failed("slow", late=True), Failed("HTTP 500", 500), Failed("cannot be reached")
NO = Failed("HTTP 400", 400)


def test_a_problem_that_fails_each_time_is_set_aside(tmp_path):
    for name, error in (("late", LATE), ("within", WITHIN), ("empty", Unreadable("no message"))):
        faults, asked, kept = served(
            tmp_path, lambda problem, number, error=error: error if problem in (0, 3) else None, name=name
        )
        assert kept == 38 * 8 and faults.stopped is None and f"problems 0, 3 ({error})" in faults.describe()
        assert 4 <= asked.count("0") < 8


@pytest.mark.parametrize("error", [WITHIN, NO])
def test_what_fails_at_many_problems_one_after_the_other_ends_the_sampling(tmp_path, error):
    faults, asked, kept = served(tmp_path, lambda problem, number: error if problem >= 20 else None)
    assert kept == 20 * 8 and len(set(asked)) <= 20 + 9 and "at 8 problems one after the other" in faults.describe()
    kept = 0
    for _ in range(60):  # one after the other only by chance, so that the others have their turn
        *_, kept = served(tmp_path, lambda problem, number: error if 20 <= problem < 30 else None, again=True)
        if kept == 30 * 8:
            break
    assert kept == 30 * 8


@pytest.mark.parametrize("most", [1, 32])
def test_what_is_refused_does_not_depend_on_what_is_asked_at_once(tmp_path, most):
    """A filter of outputs refuses one reply of a problem; another problem is refused always, and asked once unless each of
    its replies shall count.
    """

    def fate(problem, number):
        return NO if problem == 2 or (problem, number) == (1, 3) else None

    faults, asked, kept = served(tmp_path, fate, 4, 8, most)
    assert kept == 8 + 7 + 8 and ("1", 3) in faults.refusals and asked.count("2") == (1 if most == 1 else 8)
    faults, _, kept = served(tmp_path, fate, 4, 8, most, each=True, name="each")
    assert kept == 8 + 7 + 8 and sorted(faults.refusals) == [("1", 3), *(("2", number) for number in range(8))]
    faults, _, kept = served(tmp_path, lambda problem, number: None, 4, 8, most, name="each")
    assert kept == 32


def test_a_few_refusals_end_no_sampling_and_a_lost_connection_does(tmp_path):
    faults, asked, kept = served(tmp_path, lambda problem, number: NO if problem < 7 else None)
    assert kept == 33 * 8 and len(faults.refused) == 7
    faults, asked, kept = served(tmp_path, lambda problem, number: LOST)
    assert len(asked) == 4 and faults.stopped == "cannot be reached"
