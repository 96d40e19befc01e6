"""A request that an engine refuses: which is at fault, and what becomes of both."""

import pytest

from gspo.backends.vllm.errors import Refused
from gspo.interfaces import SamplerError
from gspo.types import Prompt
from tests.backends.vllm.test_fleet import LONG, PROMPTS, expected, fleet_of, tokens  # noqa: F401


def refuses(member, status, but=lambda body: False):
    """Has an engine refuse its requests, as one whose limits are others, or with a door-keeper of its own."""
    plain = member.engine.ask

    async def ask(body, timeout):
        if but(body):
            return await plain(body, timeout)
        raise Refused(f"{member.engine.name}: vLLM refuses a request (status {status}): no")

    member.engine.ask = ask


def a_probe(body):
    return body["sampling_params"]["max_tokens"] != LONG.max_new_tokens


def test_one_that_refuses_what_another_takes_is_left_out(fleet_of):  # noqa: F811
    """With its name; the completions are those of the others."""
    sampler, ports = fleet_of(3)
    refuses(sampler.fleet.members[1], 401, a_probe)
    assert tokens(sampler.generate(PROMPTS, 6, LONG)) == expected(fleet_of)
    assert f"{ports[1]} is left out" in sampler.notes[0] and "refuses a request (status 401)" in sampler.notes[0]


def test_a_request_that_all_refuse_is_wrong_itself(fleet_of):  # noqa: F811
    """As a prompt that is too long: it ends with the engines' words, and none of them is left out for it."""
    sampler, ports = fleet_of(2)
    long = Prompt("long", "", (2, 3, 4, 5, 6, 7))
    for member in sampler.fleet.members:
        refuses(member, 400, lambda body: len(body["token_ids"]) != len(long.tokens) or a_probe(body))
    with pytest.raises(SamplerError) as caught:
        sampler.generate([long], 2, LONG)
    assert all(f"{port}: vLLM refuses a request" in str(caught.value) for port in ports)
    assert len(sampler.generate(PROMPTS, 1, LONG)) == len(PROMPTS) and not sampler.notes


def test_where_all_refuse_their_probes_the_run_ends_at_once(fleet_of):  # noqa: F811
    """As with a limit below their length: no new start mends it. The trainer saves its work for a SamplerError."""
    sampler, ports = fleet_of(2)
    for member in sampler.fleet.members:
        refuses(member, 400)
    with pytest.raises(SamplerError, match="all 2 vLLM engines are lost") as caught:
        sampler.load(fleet_of.weights(2))
    assert all(f"{port}: " in str(caught.value) for port in ports) and len(sampler.notes) == 2 and sampler.version == 2
