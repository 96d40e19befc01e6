import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.eval import sampling
from gspo.eval.endpoint import EndpointReply
from gspo.eval.replies import REFUSED, Lines, Mark, Reply, read
from gspo.eval.sampling import mark, missing_keys, sample, vote, with_thinking
from gspo.interfaces import RewardsFailed
from gspo.rewards.scorer import Rewards
from gspo.types import Prompt, Rollout

PROMPTS = [Prompt(name, f"{name}?", (), {"answer": "33"}, "benchmark:aime24") for name in "ab"]


def quiet(phase, done, total):
    pass


def replies_of(path):
    return Lines(path / "replies.jsonl", Reply)


def test_replies_are_on_the_disk_as_they_come_and_few_are_under_way(tmp_path):
    open_futures, most, seen = [], [], []

    def begin(key):
        future = Future()
        open_futures.append((key, future))
        most.append(sum(not future.done() for _, future in open_futures))
        return future

    def answer():
        done = 0
        while done < 6:
            if done < len(open_futures):
                key, future = open_futures[done]
                seen.append(len(read(tmp_path / "replies.jsonl", Reply)))
                future.set_result(EndpointReply(f"{key}", 3, "eos"))
                done += 1
            time.sleep(0.01)

    thread = threading.Thread(target=answer)
    thread.start()
    with replies_of(tmp_path) as replies:
        sample(replies, list(missing_keys(PROMPTS, 3, ())), begin, 2, quiet)
        assert list(missing_keys(PROMPTS, 3, replies.lines)) == []
    thread.join()
    assert max(most) <= 2 and max(seen) >= 4
    assert read(tmp_path / "replies.jsonl", Reply)["a", 1].text == "('a', 1)"


class BegunNoMore(BaseException):
    pass


@pytest.mark.parametrize("stopped", [False, True])
def test_all_replies_that_are_there_are_kept_when_one_fails_or_somebody_stops_it(tmp_path, stopped):
    def begin(key):
        if key[1] == 63 and stopped:
            raise BegunNoMore
        future = Future()
        if key[1] == 31 and not stopped:
            future.set_exception(RuntimeError("gone"))
        elif key[1] != 63:
            future.set_result(EndpointReply("here", 1, "eos"))
        return future

    with replies_of(tmp_path) as replies, pytest.raises(BegunNoMore if stopped else RuntimeError):
        sample(replies, [("a", i) for i in range(64)], begin, 64, quiet)
    assert len(read(tmp_path / "replies.jsonl", Reply)) == 63 - (not stopped)


def test_replies_are_marked_once_and_vote(tmp_path):
    texts = ["\\boxed{12} no wait \\boxed{033}", "\\boxed{34}", "I do not know"]
    said = [Reply("a", i, text, 1, "eos") for i, text in enumerate(texts)]
    rewards = Rewards(RewardConfig(functions=["math"]), TaskConfig(source="benchmark:aime24"))
    with rewards as scorer, Lines(tmp_path / "marks.jsonl", Mark) as marks:
        mark(marks, said[:1], PROMPTS, scorer, 1.0, quiet)
        mark(marks, said, PROMPTS, scorer, 1.0, quiet)
    found = read(tmp_path / "marks.jsonl", Mark)
    assert [(found["a", i].right, found["a", i].vote) for i in range(3)] == [(True, "33"), (False, "34"), (False, None)]
    assert len((tmp_path / "marks.jsonl").read_bytes().splitlines()) == 3


def broken(prompts, completions, **columns):
    raise OSError("no compiler")


def test_scoring_that_fails_altogether_marks_nothing(tmp_path):
    said = [Reply("a", i, "?", 1, "eos") for i in range(2)]
    config = RewardConfig(functions=["tests.eval.test_sampling:broken"])
    with Rewards(config, TaskConfig(source="benchmark:aime24")) as scorer, Lines(tmp_path / "marks.jsonl", Mark) as marks:
        with pytest.raises(RewardsFailed, match="no compiler"):
            mark(marks, said, PROMPTS, scorer, 1.0, quiet)
        assert not marks.lines


def fails_at_bad(prompts, completions, **columns):
    if "bad" in completions:
        raise OSError("no opinion of this one")
    return [1.0] * len(completions)


@pytest.mark.parametrize("earlier", [0, 2])
def test_one_reply_that_cannot_be_scored_does_not_stop_an_evaluation_whose_rewards_work(tmp_path, monkeypatch, earlier):
    monkeypatch.setattr(sampling, "BATCH", 2)
    said = [Reply("a", i, text, 1, "eos") for i, text in enumerate(("good", "good", "bad"))]
    config = RewardConfig(functions=["tests.eval.test_sampling:fails_at_bad"])
    with Rewards(config, TaskConfig(source="benchmark:aime24")) as scorer, Lines(tmp_path / "marks.jsonl", Mark) as marks:
        mark(marks, said[:earlier], PROMPTS, scorer, 1.0, quiet)  # an earlier run, or none
        mark(marks, said, PROMPTS, scorer, 1.0, quiet)
        assert [one.right for one in marks.lines.values()] == [True, True, False]
        assert "no opinion of this one" in marks.lines["a", 2].error


def test_neither_programs_nor_thinking_vote():
    assert vote(Rollout.begun(Prompt("a", "?", (), {"tests": []}))) is None
    assert vote(replace(Rollout.begun(PROMPTS[0]), text="<think>\\boxed{1}</think> \\boxed{2}")) == "2"


ENDED, CUT, WHOLE = ("thus</think>\\boxed{33}", "eos"), ("try \\boxed{33}? Wait, that", "length"), ("\\boxed{33}", "eos")


@pytest.mark.parametrize(
    "said, opens, right",
    [
        ([ENDED, CUT], True, [True, False]),
        ([ENDED, WHOLE], True, [True, False]),
        ([CUT, CUT], False, [True, True]),
        ([("<think>a" + ENDED[0], "eos"), ("<think>" + CUT[0], "length")], False, [True, False]),
        ([ENDED, CUT, WHOLE, WHOLE], False, [True] * 4),  # a stray one, of a model that does not think
        ([ENDED, CUT, ("", REFUSED), ("", REFUSED)], True, [True, False, False, False]),
    ],
)
def test_replies_of_an_endpoint_show_that_its_template_begins_the_thinking(tmp_path, said, opens, right):
    replies = [Reply("a", i, text, 1, stop) for i, (text, stop) in enumerate(said)]
    prompts = with_thinking(PROMPTS, replies)
    assert [prompt.opens_thinking for prompt in prompts] == [opens] * 2
    rewards = Rewards(RewardConfig(functions=["math"]), TaskConfig(source="benchmark:aime24"))
    with rewards as scorer, Lines(tmp_path / "marks.jsonl", Mark) as marks:
        mark(marks, replies, prompts, scorer, 1.0, quiet)
        assert [marks.lines["a", i].right for i in range(len(said))] == right
        assert [marks.lines["a", i].vote for i in range(len(said))] == ["33" if good else None for good in right]
