from contextlib import closing

import pytest

from gspo.benchmark.endpoint import Endpoint
from gspo.rewards.http_client import NO_KEY, Failed, Unreadable
from gspo.types import Prompt, Sampling
from tests.rewards.endpoint import listening, said

SAMPLING = Sampling(64, 0.6, 0.95, 20, ("END",), seed=3)


def prompt(messages="1 + 1?"):
    return Prompt("a", messages, ())


def test_a_reply_and_what_was_asked():
    with listening(lambda body: said("2")) as server, closing(Endpoint(server.url, "m", "sk-1", "Be brief.", 30, 4)) as one:
        found = one.begin(prompt(), 7, SAMPLING).result(30)
        one.begin(prompt([{"role": "user", "content": "3?"}]), 8, Sampling(8, 1.0)).result(30)
    assert found == ("2", 2, "eos")
    first, second = sorted(server.asked, key=lambda body: body["seed"])
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    wanted = {"model": "m", "max_tokens": 64, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "stop": ["END"], "seed": 7}
    assert {key: first[key] for key in wanted} == wanted and server.keys[0] == "Bearer sk-1"
    assert not {"top_p", "top_k", "stop"} & set(second)  # endpoints that know no top_k are not asked for one


@pytest.mark.parametrize(
    "answer, found",
    [
        (said("3", finish_reason="length"), ("3", 2, "length")),
        (said(None), ("", 2, "eos")),
        ({**said("4"), "usage": None}, ("4", 0, "eos")),
    ],
)
def test_replies_that_were_cut_off_are_empty_or_uncounted(answer, found):
    with listening(lambda body: answer) as server, closing(Endpoint(server.url, "m", NO_KEY, "", 30, 4)) as one:
        assert one.begin(prompt(), 7, SAMPLING).result(30) == found


def test_what_is_no_reply_is_an_error():
    empty = said("4") | {"choices": []}
    with listening(lambda body: empty) as server, closing(Endpoint(server.url, "m", NO_KEY, "", 30, 4)) as one:
        future = one.begin(prompt(), 7, SAMPLING)
        with pytest.raises(Unreadable, match="no message"):
            future.result(30)
    with closing(Endpoint("http://127.0.0.1:9/v1", "m", NO_KEY, "", 2, 4)) as one, pytest.raises(Failed):
        one.begin(prompt(), 7, SAMPLING).result(30)
