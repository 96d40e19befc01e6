"""A fleet of engines, each a process that samples from bigrams: killed, hung, stale, back again."""

import asyncio
import dataclasses
import json
import signal
import sys
import threading
import time
from concurrent.futures import CancelledError

import pytest
import torch

from gspo.backends.vllm.errors import EngineError, Refused
from gspo.backends.vllm.fleet import MAX_FAILURES, State
from gspo.backends.vllm.process import free_port
from gspo.backends.vllm.sampler import VLLMSampler
from gspo.backends.vllm.server import Server, Swap
from gspo.interfaces import SamplerError
from gspo.types import Prompt, Rollout, Sampling
from tests.backends.vllm.engines import COMMAND, LONG, PROMPTS, Bigrams, expected, failing, tokens, until
from tests.patience import PATIENCE


def in_mid_batch(sampler, act):
    """The completions of a batch in which `act` happens, in a thread, once some of them are there."""
    begun = threading.Event()

    def progress(done):
        if done >= 10 and not begun.is_set():
            begun.set()
            threading.Thread(target=act).start()

    rollouts = sampler.generate(PROMPTS, 6, LONG, progress)
    assert begun.is_set()
    return rollouts


def test_weights_are_proven_at_the_temperature_at_which_they_are_read(fleet_of):
    """A stage may change it; at another one the engine would seem to hold other weights."""
    sampler, _ = fleet_of(1)
    sampler.load(dataclasses.replace(fleet_of.weights(2), temperature=0.5))
    assert sampler.version == 2 and sampler.probes and not sampler.notes


def test_three_engines_sample_what_one_does(fleet_of, engines):
    sampler, ports = fleet_of(3, batch_size=48)
    before = [engines.counts(port)["asked"] for port in ports]
    assert tokens(sampler.generate(PROMPTS, 6, LONG)) == expected(fleet_of)
    asked = [engines.counts(port)["asked"] - was for port, was in zip(ports, before)]
    assert sum(asked) == 48 and min(asked) >= 12  # spread by load
    assert sampler.fleet.counts() == {"engines/serving": 3, "engines/evicted": 0, "engines/requests_retried": 0}
    assert not sampler.notes


def test_engines_sleep_until_the_next_weights(fleet_of, engines):
    """They sample as if they had not; one that dies asleep is left out, and comes back."""
    told = expected(fleet_of, version=2)
    sampler, ports = fleet_of(2)
    sampler.rest()  # nothing is asked for
    assert len(sampler.fleet.serving) == 2
    sampler.sleep_level = 2
    sampler.rest()
    assert not sampler.fleet.serving and not sampler.notes
    with pytest.raises(EngineError, match="it sleeps"):
        sampler.fleet.members[0].engine.workers("gspo_reload", "/none")
    sampler.load(fleet_of.weights(2))
    assert len(sampler.fleet.serving) == 2 and tokens(sampler.generate(PROMPTS, 6, LONG)) == told

    sampler.rest()
    engines.kill(ports[0])
    sampler.load(fleet_of.weights(3))
    assert len(sampler.fleet.serving) == 1 and str(ports[0]) in sampler.notes[0]
    engines.start(ports[0])
    until(lambda: len(sampler.fleet.serving) == 2)
    assert sampler.check(fleet_of.weights(3)) < 1e-5


def test_while_engines_rest_none_is_started_or_given_weights(fleet_of, engines):
    """Its memory is the learner's. It has its weights with the next update."""
    sampler, ports = fleet_of(2)
    engines.kill(ports[0])
    sampler.sleep_level = 1
    sampler.rest()
    assert "is left out" in sampler.notes[0] and str(ports[0]) in sampler.notes[0]  # it does not sleep
    engines.start(ports[0])
    until(lambda: sampler.fleet.members[0].engine.answers())
    time.sleep(1.0)
    assert not sampler.fleet.serving
    sampler.load(fleet_of.weights(2))
    until(lambda: len(sampler.fleet.serving) == 2)
    assert sampler.check(fleet_of.weights(2)) < 1e-5


def test_a_server_that_a_killed_run_left_asleep_is_woken(fleet_of, tmp_path):
    """No sooner than its weights are whole, also where it was left paused, which vLLM calls asleep. A run that ends leaves
    none asleep.
    """
    sampler, ports = fleet_of(1)
    table, other = tmp_path / "of another run", Server(f"http://127.0.0.1:{ports[0]}")
    fleet_of.weights(2).save(table)
    sampler.sleep_level = 2
    for leave in (sampler.rest, lambda: other.call("/pause", {})):
        leave()
        other.start()
        assert other.swap(Swap(2, table)) == 1  # the stand-in refuses weights while it samples
        assert other.call("/is_sleeping") == {"is_sleeping": True}
        other.wake()
        assert other.call("/is_sleeping") == {"is_sleeping": False}
    other.sleep(1)
    other.stop()
    assert other.call("/is_sleeping") == {"is_sleeping": False}


def test_one_that_is_killed_in_mid_batch(fleet_of, engines):
    """What it was asked for moves to the others at once, and none gets more than batch_size of it."""
    sampler, ports = fleet_of(3)
    begin = []

    def kill():
        begin.append(time.monotonic())
        engines.kill(ports[1])

    rollouts = in_mid_batch(sampler, kill)
    assert tokens(rollouts) == expected(fleet_of)
    (note,) = sampler.notes
    assert f"{ports[1]} is left out and taken back once it answers (failure 1 in a row)" in note
    counts = sampler.counts()
    assert counts["engines/evicted"] == 1 and counts["engines/serving"] == 2 and 1 <= counts["engines/requests_retried"] <= 4
    assert sampler.counts()["engines/requests_retried"] == 0
    assert max(engines.counts(port)["most"] for port in (ports[0], ports[2])) == 4
    print(json.dumps({"moved": counts["engines/requests_retried"], "seconds": time.monotonic() - begin[0]}))


def test_one_that_hangs_is_left_out_and_taken_back_when_it_answers(fleet_of, engines):
    sampler, ports = fleet_of(3, timeout=5.0)
    rollouts = in_mid_batch(sampler, lambda: engines.signal(ports[2], signal.SIGSTOP))
    assert tokens(rollouts) == expected(fleet_of)
    assert len(sampler.notes) == 1 and str(ports[2]) in sampler.notes[0] and "not answered for 5 s" in sampler.notes[0]
    sampler.load(fleet_of.weights(2))  # it misses an update
    engines.signal(ports[2], signal.SIGCONT)
    until(lambda: len(sampler.notes) == 2)
    assert len(sampler.fleet.serving) == 3 and f"{ports[2]} is back after" in sampler.notes[1]
    before = engines.counts(ports[2])["asked"]
    assert tokens(sampler.generate(PROMPTS, 6, LONG)) == expected(fleet_of, version=2)
    assert engines.counts(ports[2])["asked"] > before


def test_one_with_stale_weights_is_named_and_samples_nothing(fleet_of, engines):
    sampler, ports = fleet_of(3, stale=[0])
    sampler.load(fleet_of.weights(2))
    assert f"{ports[0]} is left out" in sampler.notes[0]
    assert "vLLM and the trainer disagree about version 2 of the weights" in sampler.notes[0]
    until(lambda: len(sampler.notes) == MAX_FAILURES)
    assert sampler.fleet.members[0].state is State.LOST
    assert "samples otherwise than an engine that was proven" in sampler.notes[1]
    assert "given up" in sampler.notes[2] and all(str(ports[0]) in note for note in sampler.notes)
    before = engines.counts(ports[0])["asked"]
    assert tokens(sampler.generate(PROMPTS, 6, LONG)) == expected(fleet_of, version=2)
    assert engines.counts(ports[0])["asked"] == before
    sampler.load(fleet_of.weights(3))  # goes on without it
    assert sampler.check(fleet_of.weights(3)) < 1e-5 and len(sampler.fleet.serving) == 2


def test_where_all_are_stale_the_run_ends(fleet_of):
    """It may be the trainer who is wrong: no engine is started again."""
    sampler, ports = fleet_of(2, stale=[0, 1])
    with pytest.raises(
        EngineError, match=r"all 2 vLLM engines are lost: .*disagree about version 2.*disagree about version 2"
    ):
        sampler.load(fleet_of.weights(2))
    assert sampler.version == 2 and len(sampler.notes) == 2 and all("given up" in note for note in sampler.notes)
    with pytest.raises(SamplerError, match="all 2"):
        sampler.generate(PROMPTS, 1, LONG)


def test_all_killed_ends_the_run_with_their_names(fleet_of, engines):
    sampler, ports = fleet_of(3, timeout=1e6)
    with pytest.raises(SamplerError, match="all 3 vLLM engines are lost") as error:
        in_mid_batch(sampler, lambda: [engines.kill(port) for port in ports])
    assert all(f"http://127.0.0.1:{port}: " in str(error.value) for port in ports)
    with pytest.raises(SamplerError, match="all 3"):
        sampler.load(fleet_of.weights(2))
    assert sampler.version == 2  # as the port has it


def test_one_of_ours_is_started_again(fleet_of, engines, tmp_path):
    sampler, ports = fleet_of(2)
    server = sampler.fleet.members[0].engine
    server.command, server.log = COMMAND, tmp_path / "vllm.log"
    rollouts = in_mid_batch(sampler, lambda: engines.kill(ports[0]))
    assert tokens(rollouts) == expected(fleet_of)
    until(lambda: len(sampler.fleet.serving) == 2)
    assert "is left out and started again" in sampler.notes[0] and server.process.poll() is None
    sampler.load(fleet_of.weights(2))
    assert sampler.check(fleet_of.weights(2)) < 1e-5
    sampler.fleet.stop()
    assert server.process is None


def test_a_weight_update_waits_for_the_first_that_is_started_again(fleet_of, engines, tmp_path):
    """All of ours are dead when it comes."""
    sampler, ports = fleet_of(2)
    for port, member in zip(ports, sampler.fleet.members):
        member.engine.command, member.engine.log = COMMAND, tmp_path / f"{port}.log"
        engines.kill(port)
    sampler.load(fleet_of.weights(2))
    assert tokens(sampler.generate(PROMPTS, 6, LONG)) == expected(fleet_of, version=2)
    until(lambda: len(sampler.fleet.serving) == 2)
    sampler.fleet.stop()


def test_updates_and_a_death_while_they_sample(fleet_of, engines):
    """Each token has the likelihood of the weights whose version it carries, whoever sampled it."""
    sampler, ports = fleet_of(3)
    jobs = [
        sampler.begin(Rollout.begun(prompt), 10 * i + j, Sampling(600)) for j in range(2) for i, prompt in enumerate(PROMPTS)
    ]
    for version in range(2, 6):
        time.sleep(0.1)
        sampler.load(fleet_of.weights(version))
        if version == 3:
            engines.kill(ports[0])
    rollouts = [job.result() for job in jobs]
    assert all(int(r.sampled.sum()) == 600 and r.stop == "length" for r in rollouts)
    assert any(len(r.version[r.sampled].unique()) > 2 for r in rollouts)
    for r in rollouts:
        read = {v: fleet_of.weights(v).logp(r.tokens) for v in r.version[r.sampled].unique().tolist()}
        for v, logp in read.items():
            torch.testing.assert_close(r.logp[r.version == v], logp[r.version == v], atol=1e-5, rtol=0)
    assert len(sampler.fleet.serving) == 2 and len(sampler.notes) == 1


def test_one_that_always_fails_is_given_up(fleet_of):
    """Though it is always up and proven: it does not use up what the others could sample."""
    sampler, _ = fleet_of(3)
    asked = failing(sampler.fleet.members[0], EngineError("status 500: out of luck"))
    assert tokens(sampler.generate(PROMPTS, 20, LONG)) == expected(fleet_of, n=20)
    until(lambda: len(sampler.notes) == 2 * MAX_FAILURES - 1)
    assert sampler.fleet.members[0].state is State.LOST and len(asked) <= MAX_FAILURES * 4
    assert [("left out" in note, "is back" in note) for note in sampler.notes[:2]] == [(True, False), (False, True)]


def test_one_comes_back_though_nobody_can_be_told(fleet_of):
    """As with a full disk."""
    sampler, _ = fleet_of(1)
    (member,), told = sampler.fleet.members, []

    def full(text):
        told.append(text)
        raise OSError(28, "No space left on device")

    sampler.fleet.notify = full
    sampler.fleet.evict(member, member.generation, EngineError("status 500: out of luck"))
    until(lambda: sampler.fleet.serving)
    assert ["is left out" in text for text in told] == [True, False] and "is back" in told[1]


def test_all_that_it_was_asked_moves_when_one_request_fails(fleet_of):
    """The others need not wait until they time out."""
    sampler, _ = fleet_of(3, timeout=1e6)
    failing(sampler.fleet.members[0], EngineError("status 500: out of luck"), hangs=3)
    assert tokens(sampler.generate(PROMPTS, 6, LONG)) == expected(fleet_of)
    assert sampler.counts()["engines/requests_retried"] >= 4


def test_a_start_that_fails_ends_the_others(tmp_path, tiny):
    """At the start of a run all must come."""
    commands = [COMMAND, [sys.executable, "-c", "raise SystemExit('Error: no')"]]
    servers = [Server("http://127.0.0.1", command, tmp_path / f"{i}.log") for i, command in enumerate(commands)]
    sampler = VLLMSampler(tiny, servers, tmp_path, 1.0)
    with pytest.raises(EngineError, match=r"vLLM ended with status 1: .*Error: no"):
        sampler.fleet.start()
    assert not servers[0].answers() and servers[0].process is None
    sampler.close()


def test_who_closes_waits_for_the_end_of_probes(engines, tmp_path, tiny):
    """As after Ctrl-C: of what is cut off asyncio tells a page of traceback, or a thread waits for it forever."""
    sampler = VLLMSampler(tiny, [Server(engines.start(free_port()))], tmp_path, 1.0)
    sampler.fleet.start()
    weights, begun, ended, told = Bigrams(1, tiny.config.vocab_size), [], [], []
    sampler.load(weights)

    async def ask(body, timeout):
        begun.append(body)
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(0.2)  # as a connection takes to close
            ended.append(body)

    def check():
        with pytest.raises(CancelledError) as error:
            sampler.check(weights)
        told.append(error)

    sampler.fleet.members[0].engine.ask = ask
    waits = threading.Thread(target=check, daemon=True)
    waits.start()
    until(lambda: begun)
    sampler.close()
    waits.join(PATIENCE)
    assert told and len(ended) == len(begun)


def refusal(member, status):
    return Refused(f"{member.engine.name}: vLLM refuses a request (status {status}): no")


def test_one_that_refuses_what_another_takes_is_left_out(fleet_of):
    """With its name; the completions are those of the others."""
    sampler, ports = fleet_of(3)
    failing(sampler.fleet.members[1], refusal(sampler.fleet.members[1], 401))
    assert tokens(sampler.generate(PROMPTS, 6, LONG)) == expected(fleet_of)
    assert f"{ports[1]} is left out" in sampler.notes[0] and "refuses a request (status 401)" in sampler.notes[0]


def test_a_request_that_all_refuse_is_wrong_itself(fleet_of):
    """As a prompt that is too long: it ends with the engines' words, and none of them is left out for it."""
    sampler, ports = fleet_of(2)
    long = Prompt("long", "", (2, 3, 4, 5, 6, 7))
    for member in sampler.fleet.members:
        failing(member, refusal(member, 400), lambda body: len(body["token_ids"]) != len(long.tokens))
    with pytest.raises(SamplerError) as caught:
        sampler.generate([long], 2, LONG)
    assert all(f"{port}: vLLM refuses a request" in str(caught.value) for port in ports)
    assert len(sampler.generate(PROMPTS, 1, LONG)) == len(PROMPTS) and not sampler.notes


def test_where_all_refuse_their_probes_the_run_ends_at_once(fleet_of):
    """As with a limit below their length: no new start mends it. The trainer saves its work for a SamplerError."""
    sampler, ports = fleet_of(2)
    for member in sampler.fleet.members:
        failing(member, refusal(member, 400), lambda body: False)
    with pytest.raises(SamplerError, match="all 2 vLLM engines are lost") as caught:
        sampler.load(fleet_of.weights(2))
    assert all(f"{port}: " in str(caught.value) for port in ports) and len(sampler.notes) == 2 and sampler.version == 2
