"""What the vLLM sampler makes of an engine that answers wrongly. tests/vllm has the tests against a real one."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import gspo
from gspo.backends.vllm_sampler import GENERATE, VLLMSampler
from gspo.backends.vllm_server import EngineError, Server, serving
from gspo.configfile import check_sampler, from_dict
from gspo.types import Prompt, Sampling
from tests.tiny_run import ROWS, likes_a, model, settings


def choice(tokens=(5, 6, 1), logp=(-0.5, -1.0, -2.0), reason="stop", version="3"):
    """A reply as vLLM's server words it."""
    return {
        "token_ids": list(tokens),
        "logprobs": {"content": [{"token_id": t, "logprob": p} for t, p in zip(tokens, logp)]},
        "finish_reason": reason,
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
    }


@pytest.fixture
def engine():
    """An HTTP server whose answers a test scripts, one after the other; the last one stays."""
    script, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")))
            status, body = script.pop(0) if len(script) > 1 else script[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        do_GET = do_POST

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    server.script, server.asked = script, asked
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()


def sampler_of(engine, tmp_path, **options):
    made = VLLMSampler(model(), Server(engine.url), tmp_path, 1.0, **options)
    made.version = 3
    return made


PROMPTS = [Prompt("a", "", (2, 3, 4)), Prompt("b", "", (7, 8))]


def test_a_reply_as_it_comes(engine, tmp_path):
    engine.script.append((200, {"choices": [choice()]}))
    found = sampler_of(engine, tmp_path).generate(PROMPTS, 2, Sampling(8, 0.9, seed=1, stop_ids=(1,), stop=("ab",)))
    assert [r.prompt.id for r in found] == ["a", "a", "b", "b"]
    first = found[0]
    assert first.tokens.tolist() == [2, 3, 4, 5, 6, 1] and first.sampled.tolist() == [False] * 3 + [True] * 3
    assert first.logp.tolist() == [0, 0, 0, -0.5, -1.0, -2.0] and first.version.tolist() == [-1, -1, -1, 3, 3, 3]
    assert first.stop == "eos"
    path, body = next((path, body) for path, body in engine.asked if body["token_ids"] == [2, 3, 4])
    sent = body["sampling_params"]
    assert path == GENERATE and sent["logprobs"] == 0 and sent["max_tokens"] == 8
    assert sent["temperature"] == 0.9 and sent["stop_token_ids"] == [1] and sent["ignore_eos"] and sent["stop"] == ["ab"]
    assert len({body["sampling_params"]["seed"] for _, body in engine.asked}) == 4


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, b"out of memory", "status 500: out of memory"),
        (200, b"<html>", "cannot be read"),
        (200, {"choices": []}, "cannot be read"),
        (200, {"choices": [choice() | {"logprobs": None}]}, "cannot be read"),
        (200, {"choices": [choice(tokens=(), logp=())]}, "0 tokens"),
        (200, {"choices": [choice(logp=(-0.5, -1.0))]}, "3 tokens with 2 log-probabilities"),
        (200, {"choices": [choice(tokens=(5, 6, 99999))]}, "tokens outside of 0 to"),
        (200, {"choices": [choice(logp=(-0.5, float("nan"), -1.0))]}, "no numbers up to 0"),
        (200, {"choices": [choice(logp=(-0.5, 0.7, -1.0))]}, "no numbers up to 0"),
        (200, {"choices": [choice(reason="error")]}, "finish reason 'error'"),
        (200, {"choices": [choice(version="2")]}, r"version \['2'\] of the weights where 3 was loaded"),
    ],
)
def test_garbage_is_never_trained_on(engine, tmp_path, status, body, said):
    engine.script.append((status, body))
    with pytest.raises(EngineError, match=said):
        sampler_of(engine, tmp_path).generate(PROMPTS, 1, Sampling(8))


def test_an_engine_that_hangs(engine, tmp_path):
    engine.script.append((200, {"choices": [choice()]}))
    wait = threading.Event()
    engine.RequestHandlerClass.do_POST = lambda self: wait.wait(10)
    with pytest.raises(EngineError, match="ReadTimeout"):
        sampler_of(engine, tmp_path, timeout=0.3).generate(PROMPTS, 1, Sampling(8))
    wait.set()


@pytest.mark.parametrize("path", ["/weight_info", GENERATE])
def test_a_server_that_lacks_something(engine, path):
    answers = {"/weight_info": (200, {}), GENERATE: (400, {})}
    engine.script += [(404, {}) if name == path else answer for name, answer in answers.items()]
    with pytest.raises(ValueError, match=rf"sampler.url = .*{path} answers with 404: start it with .*gspo_vllm.py"):
        Server(engine.url).check()


def test_a_server_that_has_all(engine):
    engine.script += [(200, {}), (400, {})]
    Server(engine.url).check()


def test_one_that_ends_at_once(tmp_path):
    server = serving(tmp_path, "python3", "float32", {}, tmp_path / "vllm.log")
    server.command = ["python3", "-c", "raise SystemExit('an Error of its own')"]
    with pytest.raises(EngineError, match=r"vLLM ended with status 1: .*an Error of its own"):
        server.start()


def test_arguments_become_flags(tmp_path):
    given = {"gpu_memory_utilization": 0.4, "enforce_eager": True, "enable_prefix_caching": False, "dtype": "half"}
    command = serving(tmp_path, "py", "float32", given, tmp_path).command
    assert command[0] == "py" and command[-4:] == ["half", "--gpu-memory-utilization", "0.4", "--enforce-eager"]
    assert command.count("--dtype") == 1 and not any("prefix" in part for part in command)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"url": "http://x"}, "sampler.url is of no use to the embedded sampler"),
        ({"engine": "vllm", "quantize": "int4"}, "sampler.quantize = 'int4' rounds the embedded sampler's"),
        ({"engine": "vllm", "url": "http://x", "python": "p"}, "sampler.url names a server that runs already"),
        ({"engine": "vlm"}, "sampler.engine = 'vlm'.*vllm"),
        ({"engine": "vllm", "timeout": 0}, "sampler.timeout = 0"),
    ],
)
def test_settings_that_contradict(changes, message):
    with pytest.raises(ValueError, match=message):
        check_sampler(from_dict({"sampler": changes}))


def test_r3_needs_the_embedded_sampler():
    with pytest.raises(ValueError, match='router_replay = "R3" needs the sampler\'s experts'):
        check_sampler(from_dict({"sampler": {"engine": "vllm"}, "algorithm": {"router_replay": "R3"}}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"vLLM is not installed here: .*sampler\.python"),
        ({"python": "/no/such/python"}, "sampler.python = '/no/such/python': no such program"),
        ({"url": "http://127.0.0.1:9", "exchange": "/no/such"}, "sampler.exchange = '/no/such': no such folder"),
        ({"url": "http://127.0.0.1:9"}, r"sampler.url = 'http://127.0.0.1:9': nothing answers .*gspo_vllm.py"),
    ],
)
def test_what_is_refused_before_a_run_has_a_folder(tmp_path, changes, message):
    tiny = model()
    with pytest.raises(ValueError, match=message):
        gspo.train(
            tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer,
            config=settings(tmp_path / "run", sampler={"engine": "vllm"} | changes),
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
