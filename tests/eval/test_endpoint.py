from contextlib import closing, contextmanager

import pytest
from fastapi.responses import JSONResponse

from gspo.eval.endpoint import Endpoint
from gspo.rewards.http_client import NO_KEY, Unreadable
from gspo.types import Prompt, Sampling
from tests.patience import PATIENCE
from tests.rewards.endpoint import listening, said

SAMPLING = Sampling(64, 0.6, 0.95, 20, ("END",), seed=3)


def prompt(messages="1 + 1?"):
    return Prompt("a", messages, ())


def test_a_reply_and_what_was_asked():
    with listening(lambda body: said("2")) as server, closing(Endpoint(server.url, "m", "sk-1", "Be brief.", 30, 4)) as one:
        found = one.begin(prompt(), 7, SAMPLING).result(PATIENCE)
        one.begin(prompt([{"role": "user", "content": "3?"}]), 8, Sampling(8, 1.0)).result(PATIENCE)
    assert found == ("2", 2, "eos")
    first, second = sorted(server.asked, key=lambda body: body["seed"])
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    wanted = {"model": "m", "max_tokens": 64, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "stop": ["END"], "seed": 7}
    assert {key: first[key] for key in wanted} == wanted and server.keys[0] == "Bearer sk-1"
    assert not {"top_p", "top_k", "stop"} & set(second)  # endpoints that know no top_k are not asked for one


def test_replies_that_are_cut_off_empty_uncounted_or_none():
    cases = [
        (said("3", finish_reason="length"), ("3", 2, "length")),
        (said(None), ("", 2, "eos")),
        ({**said("4"), "usage": None}, ("4", 0, "eos")),
    ]
    with asked_one_by_one(lambda body: cases[body["seed"]][0]) as (_, one):
        for i, (_, found) in enumerate(cases):
            assert one.begin(prompt(), i, SAMPLING).result(PATIENCE) == found
    with (
        asked_one_by_one(lambda body: said("4") | {"choices": []}) as (_, one),
        pytest.raises(Unreadable, match="no message"),
    ):
        one.begin(prompt(), 7, SAMPLING).result(PATIENCE)


UNSUPPORTED = "Unsupported parameter: '{0}' is not supported with this model. Use '{1}' instead."
TOO_LONG = "'max_tokens' or 'max_completion_tokens' is too large: 64. This model's maximum context length is 32 tokens."


@contextmanager
def asked_one_by_one(answer):
    with listening(answer) as server, closing(Endpoint(server.url, "m", NO_KEY, "", 30, 1)) as one:
        yield server, one


def limited(knows, long=lambda body: False):
    """A server that knows the length limit by these names alone, as OpenAI's newer models know max_completion_tokens."""

    def answer(body):
        given = [name for name in ("max_tokens", "max_completion_tokens") if name in body]
        if len(given) != 1 or given[0] not in knows or long(body):
            why = TOO_LONG if long(body) else UNSUPPORTED.format(given[0], *knows)
            return JSONResponse({"error": {"message": why, "param": given[0]}}, status_code=400)
        return said("2")

    return answer


def test_a_model_that_knows_the_limit_by_its_newer_name_is_given_it():
    with asked_one_by_one(limited(["max_completion_tokens"])) as (server, one):
        assert [one.begin(prompt(), seed, SAMPLING).result(PATIENCE).text for seed in range(3)] == ["2"] * 3
    assert [body.get("max_tokens") for body in server.asked] == [64, None, None, None]  # it is learnt once
    assert [body.get("max_completion_tokens") for body in server.asked] == [None, 64, 64, 64]


def test_a_reply_that_is_too_long_is_not_a_matter_of_names():
    with asked_one_by_one(limited(["max_tokens"], long=lambda body: body["seed"] == 1)) as (server, one):
        failed = one.begin(prompt(), 1, SAMPLING).exception(PATIENCE)
        assert failed.status == 400 and "is too large: 64" in str(failed)
        assert one.begin(prompt(), 2, SAMPLING).result(PATIENCE).text == "2"
    assert server.asked[-1]["max_tokens"] == 64


@pytest.mark.parametrize("status, why", [(400, "no such model"), (500, "max_tokens"), (401, "max_tokens")])
def test_what_is_refused_for_another_reason_is_not_asked_for_again(status, why):
    wrong = JSONResponse({"error": {"message": why}}, status_code=status, headers={"x-should-retry": "false"})
    with asked_one_by_one(lambda body: wrong) as (server, one):
        assert f"HTTP {status}" in str(one.begin(prompt(), 1, SAMPLING).exception(PATIENCE))
    assert len(server.asked) == 1
