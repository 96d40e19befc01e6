import asyncio
import json
import socket
import sys
from contextlib import nullcontext

import pytest

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.open import sampler_of as open_sampler
from gspo.backends.vllm.server import GENERATE, KEY, SIDE, TAIL, Server, Swap
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from gspo.interfaces import SamplerError
from gspo.learner.weights import PolicyWeights
from tests.backends.vllm.tools import sampler_of
from tests.tiny_run import model


def test_a_server_that_lacks_something(engine):
    Server(engine.url).check()  # it has all
    for path in ("/weight_info", GENERATE):
        engine.lacks.clear()
        engine.lacks.add(path)
        with pytest.raises(ValueError, match=rf"sampler.urls: .*{path} answers with 404: start it with .*gspo_vllm.py"):
            Server(engine.url).check()


def test_a_server_with_a_key_answers_nobody_else(tmp_path):
    """What stands in front of vLLM's routes, in front of others, and all that is asked of a server."""
    program = tmp_path / "program.py"
    program.write_text(BEHIND_THE_KEY.format(plugin=str(SIDE.parent)))
    command = [sys.executable, str(program)]
    ours = Server("http://127.0.0.1", command, tmp_path / "vllm.log", {KEY: "right"}, "right")
    ours.start()
    try:
        for one in (Server(ours.url), Server(ours.url, key="wrong")):
            assert not one.answers()
            for path, body in (("/x", None), ("/collective_rpc", {"method": "x"})):
                with pytest.raises(EngineError, match="status 401: no or another key"):
                    one.call(path, body)
            with pytest.raises(SamplerError, match=r"status 401"):
                asyncio.run(asked(one))
        assert ours.call("/x") == {"path": "/x"} and ours.call("/pause", {}) == {"path": "/pause"}
        assert asyncio.run(asked(ours)) == {"path": GENERATE}
    finally:
        ours.stop()


def test_a_server_of_ones_own_is_given_the_key_that_is_set(engine, tmp_path, monkeypatch):
    plain = engine.handler.do_POST

    def keyed(self):
        if self.headers.get("Authorization") == "Bearer right":
            plain(self)
        else:
            self.send_response(401)
            self.end_headers()

    engine.handler.do_GET = engine.handler.do_POST = keyed
    policy, config = HFPolicy(model()), Config(sampler=SamplerConfig(engine="vllm", urls=[engine.url]))
    for key in ("", "wrong", "right"):
        monkeypatch.setenv(KEY, key)
        refused = pytest.raises(ValueError, match=r"sampler.urls: 'http.*' requires a key: set GSPO_KEY here to the one")
        with nullcontext() if key == "right" else refused:
            sampler = open_sampler(config, policy, PolicyWeights(policy, 0), tmp_path)
    (member,) = sampler.fleet.members
    assert member.engine.answers()
    sampler.close()


def test_how_much_a_request_may_have(engine):
    """Adapters have no limit of their own, and not every server says what it is."""
    told = [
        ([{"id": "m", "max_model_len": 40}, {"id": "policy", "max_model_len": None}], 40), ([{"id": "m"}], None), ([], None),
        (None, None), (["m"], None),
    ]  # fmt: skip
    for cards, limit in told:
        text = json.dumps({"data": cards}).encode()
        engine.handler.do_GET = lambda handler, text=text: answer(handler, text, "application/json")
        assert Server(engine.url).context() == limit
    engine.handler.do_GET = engine.handler.do_POST
    assert Server(engine.url).context() is None
    engine.lacks.add("/v1/models")
    assert Server(engine.url).context() is None


def test_of_what_a_server_said_only_the_end_is_read(tmp_path, monkeypatch):
    log, read, output = tmp_path / "vllm.log", [], Server._output
    monkeypatch.setattr(Server, "_output", lambda server: read.append(output(server)) or read[-1])
    log.write_text("Error: long ago\n" + "a line\n" * TAIL + "Error: the cause\nand so on\n")
    server = Server("http://127.0.0.1:9", ["vllm"], log)

    async def many():
        found = await asyncio.gather(*[server.ask({}, 10.0) for _ in range(20)], return_exceptions=True)
        await server.hang_up()
        return found

    assert all(str(error).endswith("vllm.log says: Error: the cause") for error in asyncio.run(many()))
    assert [len(text) for text in read] == [TAIL] * 20
    with open(log, "a") as file:
        file.write("Error: the end\n")
    assert server.last_words().endswith("Error: the cause | Error: the end")
    server._begun = log.stat().st_size  # as it starts again
    assert server.last_words().endswith("says: ")


COUNTED = """# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
vllm:spec_decode_num_draft_tokens_created{engine="0"} 1.7e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} %s
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="m"} 10.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} %s
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 77.0
"""


def test_how_many_drafted_tokens_were_accepted(engine, tmp_path):
    """Of all copies of the model, since the last look; a server that was started again counts from 0."""
    server, text = Server(engine.url), [b"{}"]
    engine.handler.do_GET = lambda handler: answer(handler, text[0])
    found = []
    for counts in ((90.0, 30.0), (110.0, 40.0), (40.0, 5.0)):
        text[0] = (COUNTED % counts).encode()
        found.append(server.drafts())
    assert found == [(100, 30), (20, 10), (50, 5)]
    sampler = sampler_of(engine, tmp_path, given=SamplerConfig(speculative_config={"method": "ngram"}))
    assert sampler.counts()["engines/draft_acceptance"] == 0.1
    assert "engines/draft_acceptance" not in sampler.counts()  # nothing was drafted since
    text[0] = (COUNTED % (60.0, 15.0)).encode()
    sampler.fleet.rest()  # as before it sleeps
    assert sampler.counts()["engines/draft_acceptance"] == 0.5
    text[0], sampler.given = (COUNTED % (80.0, 9.0)).encode(), SamplerConfig()
    assert "engines/draft_acceptance" not in sampler.counts()  # nobody was asked


def answer(handler, text, kind="text/plain"):
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.end_headers()
    handler.wfile.write(text)


def test_a_swap_that_was_given_up_ends_between_any_two_calls(engine):
    paths = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    for number in range(len(paths)):
        swap, server = Swap(2, group="a"), Server(engine.url)
        plain, made = server.call, []

        def call(path, *args, plain=plain, made=made, swap=swap, number=number, **params):
            made.append(path)
            if len(made) == number + 1:
                swap.given_up.set()
            return plain(path, *args, **params)

        server.call = call
        if number == len(paths) - 1:
            assert server.swap(swap) == 1  # it was done by then
        else:
            with pytest.raises(EngineError, match="given up"):
                server.swap(swap)
        assert made == paths[: number + 1]


LISTENS = """
import http.server, sys

class Tells(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Tells).serve_forever()
"""


def test_a_server_that_starts_again_leaves_its_port_to_who_has_taken_it(tmp_path):
    server = Server("http://127.0.0.1", [sys.executable, "-c", LISTENS], tmp_path / "vllm.log")
    try:
        server.start()
        before = server.url
        server.process.end()
        with socket.create_server(("127.0.0.1", int(before.rpartition(":")[2]))):
            server.start()
        assert server.url != before and server.answers()
    finally:
        server.stop()


async def asked(server):
    try:
        return await server.ask({}, 10.0)
    finally:
        await server.hang_up()


BEHIND_THE_KEY = """
import sys
sys.path.insert(0, {plugin!r})
import uvicorn
from gspo_vllm import Keyed

async def app(scope, receive, send):
    if scope["type"] == "http":
        body = b'{{"path": "' + scope["path"].encode() + b'"}}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({{"type": "http.response.start", "status": 200, "headers": headers}})
        await send({{"type": "http.response.body", "body": body}})

uvicorn.run(Keyed(app), host="127.0.0.1", port=int(sys.argv[2]), lifespan="off")
"""
