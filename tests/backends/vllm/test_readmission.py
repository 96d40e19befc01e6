"""An engine that comes back: whatever goes wrong then is said, and ends nobody's wait for ever."""

import threading

import numpy as np
import pytest

from gspo.backends.vllm.errors import EngineError, Refused
from gspo.backends.vllm.fleet import MAX_FAILURES, State
from gspo.backends.vllm.routed_experts import Routers
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.transfer import BroadcastTransfer
from tests.backends.vllm.engines import CPU, LONG, PROMPTS, failing, tokens, until
from tests.backends.vllm.tools import sent
from tests.patience import PATIENCE


def ended(act):
    """What it raises; fails where it does not end."""
    raised = []

    def run():
        try:
            act()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE / 2)  # less than an engine is held
    assert not thread.is_alive(), "it waits for an engine that never comes"
    return raised[0] if raised else None


def test_a_program_that_is_gone_when_it_is_started_again(fleet_of, engines, tmp_path):
    """As the environment of a vLLM that is installed anew. Who waits for a completion hears of it, and who updates."""
    sampler, ports = fleet_of(1)
    server = sampler.fleet.members[0].engine
    server.command, server.log = ["/nowhere/bin/python"], tmp_path / "vllm.log"
    engines.kill(ports[0])
    errors = [ended(act) for act in (lambda: sampler.generate(PROMPTS, 1, LONG), lambda: sampler.load(fleet_of.weights(2)))]
    assert all(isinstance(error, EngineError) and "/nowhere/bin/python" in str(error) for error in errors)
    assert len(sampler.notes) == MAX_FAILURES
    assert "it cannot be started" in sampler.notes[1] and "given up" in sampler.notes[-1]


def test_any_error_of_a_readmission_leaves_the_engine_out(fleet_of):
    """A completion moves to the other engine. A failure of a readmission counts, with its reason, and the other goes on."""
    sampler, ports = fleet_of(2)
    member = sampler.fleet.members[0]
    odd = KeyError("results")

    def swap(*args):
        raise odd

    failing(member, OSError(24, "Too many open files"))
    member.engine.swap = swap
    assert len(sampler.generate(PROMPTS, 2, LONG)) == 2 * len(PROMPTS)
    assert f"{ports[0]} is left out" in sampler.notes[0] and "OSError: [Errno 24] Too many open files" in sampler.notes[0]
    until(lambda: len(sampler.notes) == MAX_FAILURES)
    assert member.state is State.LOST and all(str(odd) in note for note in sampler.notes[1:])
    sampler.load(fleet_of.weights(2))
    assert len(sampler.generate(PROMPTS, 1, LONG)) == len(PROMPTS)


def test_one_that_comes_back_without_reporting_experts_is_left_out(fleet_of):
    """Of a server that somebody starts again, in another way. At first all engines do without."""
    sampler, _ = fleet_of(2)
    routers, silent = Routers((0,), 1, 2), {sampler.fleet.members[1]}
    for member in sampler.fleet.members:
        member.engine.ask = reporting(member, silent)
    sampler.routers, sampler.probes = routers, []  # as before the first weights
    sampler.load(fleet_of.weights(2))
    assert sampler.routers is None and len(sampler.fleet.serving) == 2
    sampler.routers, back = routers, silent.pop()
    sampler.load(fleet_of.weights(3))
    silent.add(back)
    sampler.fleet.evict(back, back.generation, EngineError("it was killed"))
    until(lambda: len(sampler.notes) == MAX_FAILURES)
    assert back.state is State.LOST and "no longer reports experts: start it with --enable" in sampler.notes[-1]
    sampler.load(fleet_of.weights(4))
    assert sampler.routers is routers and int(sampler.probes[0].routes.max()) == 0


def reporting(member, silent):
    """Its method `ask`, whose answers say that the first of two experts was chosen, unless it is `silent`."""
    plain = member.engine.ask

    async def ask(body, timeout):
        answer = await plain(body, timeout)
        if member not in silent:
            told = body["sampling_params"]["routed_experts_prompt_start"]
            read = len(body["token_ids"]) + len(answer["choices"][0]["token_ids"]) - 1
            answer["choices"][0]["routed_experts"] = sent(np.zeros((read - told, 1, 1), np.uint8))
        return answer

    return ask


def one_away(make, engines, way):
    """A fleet of two with the first killed; its weights come that way."""
    if way == "broadcast":
        make.transfer = lambda: BroadcastTransfer(CPU)
    sampler, ports = make(2)
    engines.kill(ports[0])
    sampler.generate(PROMPTS, 1, LONG)
    return sampler, ports, make.weights


@pytest.mark.parametrize(("way", "at"), [("broadcast", "/collective_rpc"), ("folder", "/resume")])
def test_an_update_waits_for_no_engine_that_comes_back(fleet_of, engines, monkeypatch, way, at):
    """It hangs in the middle of the weights of before. It then gets those of now, and that counts as no failure."""
    sampler, ports, weights = one_away(fleet_of, engines, way)
    held, free, plain = threading.Event(), threading.Event(), Server.call

    def call(self, path, body=None, **params):
        answer = plain(self, path, body, **params)
        if self.url.endswith(str(ports[0])) and path == at and not held.is_set():
            held.set()
            assert free.wait(PATIENCE)
        return answer

    monkeypatch.setattr(Server, "call", call)
    engines.start(ports[0])
    assert held.wait(PATIENCE)
    for version in (3, 4):
        assert ended(lambda version=version: sampler.load(weights(version))) is None
    assert [member.engine.name for member in sampler.fleet.serving] == [f"http://127.0.0.1:{ports[1]}"]
    alone = tokens(sampler.generate(PROMPTS, 2, LONG))
    free.set()
    until(lambda: len(sampler.fleet.serving) == 2)
    assert sampler.check(weights(4)) < 1e-5 and len(sampler.notes) == 2 and "is back" in sampler.notes[1]
    assert tokens(sampler.generate(PROMPTS, 2, LONG)) == alone
    sampler.load(weights(5))
    assert sampler.check(weights(5)) < 1e-5 and len(sampler.fleet.serving) == 2


def test_an_update_gives_its_weights_to_one_that_comes_back_where_no_other_is_left(fleet_of, monkeypatch):
    """It was given those of before just then."""
    sampler, _ = fleet_of(1)
    held, free, plain = threading.Event(), threading.Event(), Server.call

    def call(self, path, body=None, **params):
        if path == "/resume" and not held.is_set():
            held.set()
            assert free.wait(PATIENCE)
        return plain(self, path, body, **params)

    monkeypatch.setattr(Server, "call", call)
    sampler.fleet.evict(sampler.fleet.members[0], 0, EngineError("status 500"))
    assert held.wait(PATIENCE)
    loads = threading.Thread(target=sampler.load, args=(fleet_of.weights(2),), daemon=True)
    loads.start()
    until(lambda: sampler.fleet.updates == 2)
    free.set()
    loads.join(PATIENCE)
    assert not loads.is_alive() and sampler.check(fleet_of.weights(2)) < 1e-5 and len(sampler.fleet.serving) == 1


def test_one_that_fails_each_time_is_given_up_though_updates_go_on(fleet_of):
    """An update excuses a failure, for the weights that it was reading go away, but not one after the other."""
    sampler, _ = fleet_of(2)
    member = sampler.fleet.members[0]

    def fails(swap):
        if not sampler._control.locked():  # the next update waits for a second attempt
            sampler.load(fleet_of.weights(sampler.version + 1))
        raise EngineError("it hangs again")

    member.engine.swap = fails
    sampler.fleet.evict(member, member.generation, EngineError("it was killed"))
    until(lambda: len(sampler.notes) == MAX_FAILURES)
    assert member.state is State.LOST and sampler.version == 1 + (MAX_FAILURES - 1)
    assert sampler.check(fleet_of.weights(sampler.version)) < 1e-5


def test_one_that_takes_longer_than_updates_are_apart_serves_again(fleet_of, engines, monkeypatch):
    """It is healthy, and has nothing but updates against it: once an update waits for it."""
    sampler, ports, weights = one_away(fleet_of, engines, "broadcast")
    member, proves, loaded = sampler.fleet.members[0], sampler._send_and_compare, threading.Semaphore(0)

    def slow(*args):
        proves(*args)
        if not sampler._control.locked():
            loaded.acquire()  # updates come in the middle of it
            loaded.acquire()

    monkeypatch.setattr(sampler, "_send_and_compare", slow)
    engines.start(ports[0])
    until(lambda: member.state is State.READMITTING)
    for version in range(3, 30):
        sampler.load(weights(version))
        loaded.release()
        if member.state is State.SERVING:
            break
    assert member.state is State.SERVING and len(sampler.notes) == 2 and "is back" in sampler.notes[1]
    assert sampler.check(weights(sampler.version)) < 1e-5


def test_a_request_that_one_refuses_waits_for_another_that_comes_back(fleet_of, engines, monkeypatch):
    """The one that serves refuses all; the other one could say whether the requests are wrong."""
    sampler, ports = fleet_of(2)
    engines.kill(ports[1])
    sampler.generate(PROMPTS, 1, LONG)
    first, second = sampler.fleet.members
    free, proves = threading.Event(), sampler._send_and_compare

    def held(*args):
        assert free.wait(PATIENCE)
        proves(*args)

    monkeypatch.setattr(sampler, "_send_and_compare", held)
    failing(first, Refused("vLLM refuses a request (status 404)"), lambda body: False)
    engines.start(ports[1])
    until(lambda: second.state is State.READMITTING)
    done = []
    asks = threading.Thread(target=lambda: done.append(sampler.generate(PROMPTS, 1, LONG)), daemon=True)
    asks.start()
    asks.join(1)
    assert asks.is_alive()
    free.set()
    asks.join(PATIENCE)
    assert done and len(done[0]) == len(PROMPTS)
    assert any("404" in note for note in sampler.notes)  # it was the one at fault
