"""A rank is killed while weights are broadcast to a real engine, which runs on. The run goes on by itself, bit for bit."""

import re

import pytest

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.backends.vllm.server import SIDE, Server
from tests.backends.vllm.engine.servers import PYTHON, UNTIED
from tests.launch.started import begin, fill, finished, steps
from tests.launch.test_faults import LAYER, SENT, go_through, nothing_left, same
from tests.tiny_run import PIECES

TO_LEADER = "], []]"  # the shards of a layer that the leader alone gets


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = fill(tmp_path_factory.mktemp("ranks"))
    build_tiny(UNTIED, longest_match_tokenizer(PIECES), 0).save(place / "model")  # vLLM has no attention for heads of 16
    return place


@pytest.fixture(scope="module")
def engine(place):
    """The address of a server that belongs to no run."""
    arguments = f"--model {place / 'model'} --dtype float32 --enforce-eager --max-model-len 128".split()
    server = Server("http://127.0.0.1", [PYTHON, str(SIDE), *arguments], place / "vllm.log")
    server.start()
    yield server.url
    server.stop()


@pytest.mark.slow
def test_a_rank_that_is_killed_in_a_broadcast(place, engine):
    """First the leader, which sends; then the other one, which has half of each layer. The engine is half loaded."""
    given = "--sampler.engine=vllm", f"--sampler.urls=[{engine!r}]", "--sampler.weight_transfer=broadcast"
    status, output = finished(begin(place, "sent", "--scale.ranks=2", "--train.steps=6", *given))
    assert status == 0, output
    go_through(place, "killed", [("kill", 0, LAYER, 21), ("kill", 1, SENT, 13, TO_LEADER)], *given)
    assert same(place, "killed", "sent") and steps(place, "killed") == 6
    nothing_left(place, "killed")
    log = (place / "vllm.log").read_text(errors="replace")
    assert re.search("Connection (closed|reset) by peer", log)  # the leader was gone in the middle of a broadcast
    assert "the trainer stopped in the middle of a weight transfer" in log
