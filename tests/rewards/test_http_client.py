import asyncio
import json
import threading
import time
from contextlib import closing

import pytest
from fastapi.responses import Response

from gspo.rewards.judge import Judge
from tests.leap import leap
from tests.logged import logs
from tests.patience import PATIENCE
from tests.rewards.endpoint import listening, material, said, score
from tests.rewards.judging import KEY, judge, rewards


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", KEY)


class Once:
    """Something wrong first, then right answers."""

    def __init__(self, *wrong):
        self.wrong, self.lock = list(wrong), threading.Lock()

    def __call__(self, body):
        with self.lock:
            return self.wrong.pop(0) if self.wrong else score(5)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (Response("{}", 429, {"retry-after-ms": "20"}), "HTTP 429"),
        (Response("{}", 500), "HTTP 500"),
        (Response("<html>busy</html>", media_type="text/html"), "unreadable response: no chat completion"),
        ({"choices": []}, "unreadable response: no chat completion"),
        (said("Seven of ten."), "unreadable response: no JSON object"),
        (said(None), "unreadable response: no text"),
        (said('{"score": 7}', finish_reason="length"), "unreadable response: cut off"),
    ],
)  # fmt: skip
def test_what_fails_is_asked_again_and_else_no_opinion(wrong, reason):
    with listening(Once(wrong)) as endpoint, closing(judge(endpoint, retries=1)) as judged:
        assert rewards(judged, ["a"]) == [0.5]
        assert judged.counts()["retries"] == 1
    with listening(lambda body: wrong) as endpoint, closing(judge(endpoint, retries=1)) as judged:
        assert rewards(judged, ["a"]) == [None]
        assert len(endpoint.asked) == 2
        with logs(match=f"judge: not scored 1 times: {reason}"):
            assert judged.counts()["failed"] == 1
        assert rewards(judged, ["a"]) == [None]  # not kept: the next answer may be better
        assert len(endpoint.asked) == 4


def test_what_asking_again_cannot_help_is_asked_once():
    wrong = Response(json.dumps({"error": {"message": f"no such model, {KEY}"}}), 404, media_type="application/json")
    with listening(lambda body: wrong) as endpoint, closing(judge(endpoint, retries=3)) as judged:
        assert rewards(judged, ["a"]) == [None]
        assert len(endpoint.asked) == 1
        (reason,) = judged.endpoint.reasons
        assert "no such model" in reason and KEY not in reason
        with pytest.raises(ValueError, match=r"judge.url = .* HTTP 404") as error:
            judged.wait()
        assert KEY not in str(error.value)


def test_a_slow_answer_is_no_opinion():
    def answer(body):
        if material(body)["REPLY"] == "quick":
            return score(5)
        while not judged.endpoint.total["seconds"]:  # the other one may take as long as it needs
            time.sleep(0.01)
        leap(judged.endpoint._loop)
        return 0.5, score(1)

    with listening(answer) as endpoint, closing(judge(endpoint, retries=2)) as judged:
        assert rewards(judged, ["slow", "quick"]) == [None, 0.5]
        assert list(judged.endpoint.reasons) == [f"no response within {PATIENCE:g} s"] and len(endpoint.asked) == 2


def test_so_many_requests_at_once_and_no_more():
    meet = threading.Barrier(3, timeout=PATIENCE)

    def answer(body):
        meet.wait()
        return 0.05, score(1)

    with listening(answer) as endpoint, closing(judge(endpoint, max_concurrent=3)) as judged:

        async def two():
            return await asyncio.gather(*(judged(["?"] * 6, [f"{i}{j}" for j in range(6)]) for i in range(2)))

        assert asyncio.run(two()) == [[0.1] * 6] * 2
        assert endpoint.most == 3


def test_a_server_that_is_not_there():
    with closing(Judge(model="m", url="http://me:word@127.0.0.1:9/v1", key_variable="", rubric="r", retries=0)) as judged:
        with pytest.raises(ValueError, match=r"judge.url = 'http://<hidden>@127.0.0.1:9/v1', judge.model = 'm': cannot be"):
            judged.wait()
        assert rewards(judged, ["a", "b"]) == [None, None]
