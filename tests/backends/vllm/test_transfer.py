"""Weights broadcast to engines, each a process that samples from bigrams: killed, hung, back
again. engine/test_transfer.py has vLLM itself.
"""

import signal
import threading
import time
from collections import defaultdict
from functools import partial

import pytest

from gspo.backends.vllm.plugin import gspo_transfer as wire
from gspo.backends.vllm.process_groups import Link
from gspo.backends.vllm.server import Server
from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer
from tests.backends.vllm.engines import CPU, LONG, PROMPTS, Bigrams, tokens, until
from tests.patience import PATIENCE


@pytest.fixture
def fleet_of(fleet_of):
    """As the other one; the weights are broadcast."""
    fleet_of.transfer = partial(BroadcastTransfer, CPU)
    return fleet_of


def hurry(sampler, number, seconds, patch):
    """A layer may take so long to this engine. The others have all the time that a busy machine needs."""
    sampler.transfer.layer, late = seconds, []
    send, ended, member = Link.send, wire.ended, sampler.fleet.members[number]

    def sends(link, *layer):
        works = send(link, *layer)
        late.extend(works if link is sampler.transfer._links.get(member) else [])
        return works

    def ends(works, limit, *check):
        return ended(works, limit if any(work in late for work in works) else PATIENCE, *check)

    patch.setattr(Link, "send", sends)
    patch.setattr(wire, "ended", ends)


def test_engines_sample_as_through_the_folder(fleet_of, tmp_path):
    """What is sent is a table of V x V float32: once beside the model, and once into each engine."""
    sampler, _ = fleet_of(2)
    sampled, size = [], sampler.model.config.vocab_size**2 * 4
    for transfer in (sampler.transfer, FolderTransfer(tmp_path, False)):
        sampler.transfer = transfer
        sampler.counts()
        for version in (2, 3):
            sampler.load(fleet_of.weights(version))
            counts = sampler.counts()
            assert size <= counts["sync/bytes"] < size + 1000 and counts["sync/copies"] == 3
            sampled.append(tokens(sampler.generate(PROMPTS, 4, LONG)))
    assert sampled[0] == sampled[2] != sampled[1] == sampled[3] and not sampler.notes
    assert sampler.counts()["sync/copies"] == 0


def test_an_old_folder_that_cannot_be_deleted_is_in_nobodys_way(tmp_path, monkeypatch):
    """NFS keeps files that an engine reads; it goes with a later update."""
    transfer, weights = FolderTransfer(tmp_path, False), Bigrams(1)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path, **options: None)
        for _ in range(3):
            transfer.prepare(weights)
            transfer.commit(weights)
    assert len(list(tmp_path.iterdir())) == 3
    transfer.prepare(weights)
    transfer.commit(weights)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"] and transfer.copies == 4


def test_one_that_is_killed_in_the_middle_of_the_weights(fleet_of, engines):
    """The other gets them all, at once; it comes back with what was sent, as the trainer kept it."""
    sampler, ports = fleet_of(2)
    sampler.transfer.layer = 1e6  # and nobody waits as long as that
    sampler.load(fleet_of.weights(2, between=lambda: engines.kill(ports[1])))
    assert len(sampler.fleet.serving) == 1
    (note,) = sampler.notes
    assert f"{ports[1]} is left out and taken back once it answers (failure 1 in a row)" in note
    alone = tokens(sampler.generate(PROMPTS, 4, LONG))
    engines.start(ports[1])
    until(lambda: len(sampler.fleet.serving) == 2)
    assert "is back" in sampler.notes[-1] and sampler.check(fleet_of.weights(2)) < 1e-5
    assert tokens(sampler.generate(PROMPTS, 4, LONG)) == alone
    sampler.load(fleet_of.weights(3))
    assert sampler.check(fleet_of.weights(3)) < 1e-5 and len(sampler.notes) == 2


def test_one_that_hangs_in_the_middle_of_the_weights(fleet_of, engines, monkeypatch):
    """The others and the trainer wait as long as the limits say, and no longer."""
    sampler, ports = fleet_of(3)
    hurry(sampler, 1, 2.0, monkeypatch)
    for member in sampler.fleet.members:
        member.engine.sync_timeout = 1e6  # and nobody waits as long as that
    begin = time.monotonic()
    stops = lambda: engines.signal(ports[1], signal.SIGSTOP)  # noqa: E731
    sampler.load(fleet_of.weights(2, between=stops, width=8_000_000))  # a socket does not take it whole
    assert time.monotonic() - begin >= 2.0
    assert len(sampler.fleet.serving) == 2 and str(ports[1]) in sampler.notes[0]
    sampler.load(fleet_of.weights(3))  # it misses an update
    assert sampler.check(fleet_of.weights(3)) < 1e-5
    monkeypatch.undo()
    engines.signal(ports[1], signal.SIGCONT)
    until(lambda: len(sampler.fleet.serving) == 3)
    assert "is back" in sampler.notes[-1] and sampler.check(fleet_of.weights(3)) < 1e-5


def test_a_trainer_that_gives_up_in_the_middle_says_so(fleet_of):
    """The engines do not wait for the rest; they take the next weights."""

    def fails():
        raise MemoryError("no room for a layer")

    sampler, _ = fleet_of(2)
    sampler.transfer.layer = 1e6  # and nobody waits as long as that
    with pytest.raises(MemoryError):
        sampler.load(fleet_of.weights(2, between=fails))
    back = {member: member.generation for member in sampler.fleet.members}
    errors = sampler.transfer.send(back, 2)  # to those that come back meanwhile: nothing is no weights
    assert errors.keys() == back.keys() and all("no weights to send" in str(error) for error in errors.values())
    sampler.load(fleet_of.weights(3))
    assert len(sampler.fleet.serving) == 2
    assert sampler.check(fleet_of.weights(3)) < 1e-5 and not sampler.notes


@pytest.mark.parametrize("late", ["before it joins again", "after it has joined again"])
def test_a_swap_that_was_given_up_does_not_go_on(fleet_of, monkeypatch, late):
    """Its engine answers to /pause late: by then another attempt is under way, whose weights are not for the first."""
    sampler, ports = fleet_of(2)
    hurry(sampler, 1, 1.0, monkeypatch)
    plain, paths, first, back = Server.call, defaultdict(list), [], threading.Event()

    def call(self, path, body=None, **params):
        if not self.url.endswith(str(ports[1])):
            return plain(self, path, body, **params)
        me, method = threading.current_thread(), (body or {}).get("method", path)  # a number may come again
        paths[me].append(method)
        if not first and method == "/pause":
            first.append(me)
            answer = plain(self, path, body, **params)
            assert back.wait(PATIENCE)
            return answer
        answer = plain(self, path, body, **params)
        if method == ("gspo_join" if late.startswith("after") else "gspo_place") and first:
            back.set()
        return answer

    monkeypatch.setattr(Server, "call", call)
    sampler.load(fleet_of.weights(2))
    assert len(sampler.fleet.serving) == 1 and "not done in time" in sampler.notes[0]
    until(lambda: len(sampler.fleet.serving) == 2)
    time.sleep(0.5)  # whoever would go on does
    assert paths[first[0]] == ["/pause"] and len(sampler.notes) == 2 and "is back" in sampler.notes[1]
    assert sampler.check(fleet_of.weights(2)) < 1e-5
