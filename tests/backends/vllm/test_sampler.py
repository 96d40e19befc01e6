"""What the vLLM sampler makes of an engine that answers wrongly. The folder engine has the tests against a real one."""

import asyncio
import dataclasses
import fcntl
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from safetensors import SafetensorError

import gspo
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.open import LOCK, sweep
from gspo.backends.vllm.sampler import VLLMSampler
from gspo.backends.vllm.server import GENERATE, EngineError, Server, serving
from gspo.config.checks import check_sampler
from gspo.config.files import from_dict
from gspo.learner.weights import PolicyWeights
from gspo.ports import SamplerError
from gspo.types import Prompt, Rollout, Sampling
from tests.tiny_run import ROWS, likes_a, model, settings


def choice(tokens=(5, 6, 1), logp=(-0.5, -1.0, -2.0), reason="stop", version="3"):
    """A completion as vLLM's server words it."""
    return {
        "token_ids": list(tokens),
        "logprobs": {"content": [{"token_id": t, "logprob": p} for t, p in zip(tokens, logp)]},
        "finish_reason": reason,
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
    }


@pytest.fixture
def engine():
    """An HTTP server. `completions` are the answers to requests for completions, one after the other, the last one again and
    again, with what happens before they are sent; `lacks` are paths that it does not know.
    """
    completions, requests, lacks = [], [], set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            path = self.path.split("?")[0]
            requests.append((path, body))
            status, answer = 200, {}
            if path in lacks:
                status = 404
            elif path == GENERATE:
                scripted = (400, {}) if not body else completions.pop(0) if len(completions) > 1 else completions[0]
                status, answer, *then = scripted
                for happens in then:
                    happens()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        do_GET = do_POST

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    server.completions, server.requests, server.lacks, server.handler = completions, requests, lacks, Handler
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()


def sampler_of(engine, tmp_path, **options):
    sampler = VLLMSampler(model(), Server(engine.url), tmp_path, 1.0, **options)
    sampler.version = 3
    return sampler


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("gspo.backends.vllm.sampler.PAUSE", 0.0)


PROMPTS = [Prompt("a", "", (2, 3, 4)), Prompt("b", "", (7, 8))]


def test_a_completion_as_it_comes(engine, tmp_path):
    engine.completions.append((200, {"choices": [choice()]}))
    rollouts = sampler_of(engine, tmp_path).generate(PROMPTS, 2, Sampling(8, 0.9, seed=1, stop_ids=(1,), stop=("ab",)))
    assert [r.prompt.id for r in rollouts] == ["a", "a", "b", "b"]
    first = rollouts[0]
    assert first.tokens.tolist() == [2, 3, 4, 5, 6, 1] and first.sampled.tolist() == [False] * 3 + [True] * 3
    assert first.logp.tolist() == [0, 0, 0, -0.5, -1.0, -2.0] and first.version.tolist() == [-1, -1, -1, 3, 3, 3]
    assert first.stop == "eos"
    path, body = next((path, body) for path, body in engine.requests if body["token_ids"] == [2, 3, 4])
    params = body["sampling_params"]
    assert path == GENERATE and params["logprobs"] == 0 and params["max_tokens"] == 8
    assert (
        params["temperature"] == 0.9
        and params["stop_token_ids"] == [1]
        and params["ignore_eos"]
        and params["stop"] == ["ab"]
    )
    assert len({body["sampling_params"]["seed"] for _, body in engine.requests}) == 4


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b"out of memory", "status 500: out of memory"),
        (200, b"<html>", "cannot be read"),
        (200, {"choices": []}, "cannot be read"),
        (200, {"choices": [choice() | {"logprobs": None}]}, "3 tokens with 0 log-probabilities"),
        (200, {"choices": [choice(tokens=(), logp=())]}, "0 tokens"),
        (200, {"choices": [choice(logp=(-0.5, -1.0))]}, "3 tokens with 2 log-probabilities"),
        (200, {"choices": [choice(tokens=(5, 6, 99999))]}, "tokens outside of 0 to"),
        (200, {"choices": [choice(logp=(-0.5, float("nan"), -1.0))]}, "no numbers up to 0"),
        (200, {"choices": [choice(logp=(-0.5, 0.7, -1.0))]}, "no numbers up to 0"),
        (200, {"choices": [choice(reason="error")]}, "finish reason 'error'"),
        (200, {"choices": [choice(version="2")]}, r"version \['2'\] of the weights where 3 was loaded"),
    ],
)
def test_garbage_is_never_trained_on(engine, tmp_path, status, body, message):
    engine.completions.append((status, body))
    with pytest.raises(EngineError, match=message):
        sampler_of(engine, tmp_path).generate(PROMPTS, 1, Sampling(8))


def test_an_engine_that_hangs(engine, tmp_path):
    engine.completions.append((200, {"choices": [choice()]}))
    wait, plain = threading.Event(), engine.handler.do_POST
    engine.handler.do_POST = lambda self: wait.wait(10) if self.path == GENERATE else plain(self)
    with pytest.raises(EngineError, match="ReadTimeout"):
        sampler_of(engine, tmp_path, timeout=0.2).generate(PROMPTS, 1, Sampling(8))
    wait.set()


def test_one_bad_answer_is_asked_for_again(engine, tmp_path):
    """After the weights were put in place once more; what else came stays."""
    engine.completions += [(500, b"busy"), (200, {"choices": [choice()]})]
    notes = []
    rollouts = sampler_of(engine, tmp_path, batch_size=1, tell=notes.append).generate(PROMPTS, 2, Sampling(8))
    assert len(rollouts) == 4 and len(notes) == 1 and "status 500: busy" in notes[0]
    paths = [path for path, _ in engine.requests]
    assert paths.count(GENERATE) == 5 and paths.count("/collective_rpc") == 1 and paths[-1] == GENERATE


def test_a_request_that_is_refused_is_not_repeated(engine, tmp_path):
    """No new start of the server makes a prompt shorter."""
    engine.completions.append((400, b"prompt (300) is longer than max_model_len (256)"))
    with pytest.raises(SamplerError, match=r"refuses a request \(status 400\): prompt \(300\) is longer"):
        sampler_of(engine, tmp_path).generate(PROMPTS, 2, Sampling(8))
    assert "/collective_rpc" not in [path for path, _ in engine.requests]


def test_an_engine_that_is_lost_is_started_once_for_all(engine, tmp_path):
    engine.completions.append((200, {"choices": [choice()]}))
    sampler, starts = sampler_of(engine, tmp_path), []

    def start():
        starts.append(1)
        raise EngineError("cannot start")

    sampler.server.start = start
    engine.completions[:] = [(500, b"dead")]
    jobs = [sampler.begin(Rollout.begun(PROMPTS[0]), i, Sampling(8)) for i in range(6)]
    for job in jobs:
        with pytest.raises(EngineError, match="cannot start"):
            job.result()
    assert starts == [1]


def test_the_check_does_not_queue_behind_long_completions(engine, tmp_path):
    sampler, free = sampler_of(engine, tmp_path, batch_size=1), threading.Event()
    engine.completions += [(200, {"choices": [choice()]}, lambda: free.wait(20)), (200, {"choices": [choice()]})]
    long = sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(8))
    while not engine.requests:
        time.sleep(0.01)
    with pytest.raises(EngineError, match="disagree about version 3"):  # the scripted likelihoods are not the policy's
        sampler.check(PolicyWeights(HFPolicy(sampler.model), sampler.version))
    assert not long.done()
    free.set()
    assert long.result().stop == "stop"


def part(*tokens, reason="abort", version="3"):
    return 200, {"choices": [choice(tokens, [-1.0] * len(tokens), reason, version)]}


def test_an_interrupted_completion_goes_on(engine, tmp_path):
    """Each token keeps its version, the rest is asked for with what came, and with another seed."""
    sampler = sampler_of(engine, tmp_path)
    engine.completions += [(*part(5, 6), lambda: setattr(sampler, "version", 4)), part(version="4")]
    engine.completions += [part(7, version="4"), part(8, 1, reason="stop", version="4")]
    rollout = sampler.begin(Rollout.begun(PROMPTS[0]), 11, Sampling(8, stop_ids=(1,))).result()
    assert rollout.tokens.tolist() == [2, 3, 4, 5, 6, 7, 8, 1] and rollout.stop == "eos"
    assert rollout.version.tolist() == [-1, -1, -1, 3, 3, 4, 4, 4]
    bodies = [body for _, body in engine.requests]
    assert [body["token_ids"] for body in bodies] == [[2, 3, 4], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 7]]
    params = [body["sampling_params"] for body in bodies]
    assert [each["max_tokens"] for each in params] == [8, 6, 6, 5]
    assert len({each["seed"] for each in params}) == 3


def test_a_completion_that_ended_as_it_was_interrupted(engine, tmp_path):
    engine.completions += [part(5, 6, 7), part(9, 9)]
    sampler = sampler_of(engine, tmp_path)
    assert sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(3)).result().stop == "length"
    engine.completions[:] = [part(5, 1), part(9, 9)]
    assert sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(8, stop_ids=(1,))).result().stop == "eos"


def test_a_stop_string_that_two_parts_share(engine, tmp_path):
    a, b = sampler_of(engine, tmp_path).model.tokenizer("a b")["input_ids"][::2]
    engine.completions += [part(a, a), part(b, a, a, reason="length")]
    rollout = sampler_of(engine, tmp_path).begin(Rollout.begun(PROMPTS[0]), 1, Sampling(5, stop=("ab",))).result()
    assert (rollout.text, rollout.stop, rollout.tokens[rollout.sampled].tolist()) == ("aab", "stop", [a, a, b])


def test_a_saved_completion_goes_on(engine, tmp_path):
    engine.completions.append(part(8, 1, reason="stop"))
    sampler = sampler_of(engine, tmp_path)
    saved = dataclasses.replace(
        Rollout.begun(PROMPTS[1]), tokens=torch.tensor([7, 8, 5]), sampled=torch.tensor([False, False, True]),
        logp=torch.tensor([0.0, 0.0, -0.5]), version=torch.tensor([-1, -1, 2]),
    )  # fmt: skip
    rollout = sampler.begin(saved, 1, Sampling(8, stop_ids=(1,))).result()
    assert rollout.tokens.tolist() == [7, 8, 5, 8, 1] and rollout.version.tolist() == [-1, -1, 2, 3, 3]
    whole = sampler.begin(rollout, 1, Sampling(8, stop_ids=(1,))).result()
    assert whole is rollout and len(engine.requests) == 1


@pytest.mark.parametrize("path", ["/weight_info", GENERATE])
def test_a_server_that_lacks_something(engine, path):
    engine.lacks.add(path)
    with pytest.raises(ValueError, match=rf"sampler.url = .*{path} answers with 404: start it with .*gspo_vllm.py"):
        Server(engine.url).check()


def test_a_server_that_has_all(engine):
    Server(engine.url).check()


def test_one_that_ends_at_once(tmp_path):
    server = serving(tmp_path, "python3", "float32", {}, tmp_path / "vllm.log")
    server.command = ["python3", "-c", "raise SystemExit('an Error of its own')"]
    with pytest.raises(EngineError, match=r"vLLM ended with status 1: .*an Error of its own"):
        server.start()


def test_a_cpus_cache_leaves_the_trainer_some_memory(tmp_path, monkeypatch):
    server = serving(tmp_path, "python3", "float32", {}, tmp_path / "vllm.log")
    server.command = ["python3", "-c", "import os; raise SystemExit('Error: ' + os.environ['VLLM_CPU_KVCACHE_SPACE'])"]
    with pytest.raises(EngineError, match=r"Error: 4$"):
        server.start()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")  # whoever sets it is heard
    with pytest.raises(EngineError, match=r"Error: 7$"):
        server.start()


def test_arguments_become_flags(tmp_path):
    arguments = {"gpu_memory_utilization": 0.4, "enforce_eager": True, "enable_prefix_caching": False, "dtype": "half"}
    command = serving(tmp_path, "py", "float32", arguments | {"hf_overrides": {"a": 1}, "x": ["b", "c"]}, tmp_path).command
    assert command[0] == "py" and command[-10:-1] == [
        "half", "--gpu-memory-utilization", "0.4", "--enforce-eager", "--no-enable-prefix-caching", "--hf-overrides",
        '{"a": 1}', "--x", "b",
    ]  # fmt: skip


def test_no_room_for_the_weights_is_said_with_the_remedy(engine, tmp_path):
    sampler = sampler_of(engine, tmp_path)

    class Full:
        def save(self, folder, *, merged):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(SamplerError, match=r"cannot be written to .* MiB left .*No space left.*sampler.exchange"):
        sampler.write(Full())


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


def test_what_killed_runs_left_in_memory_is_swept(tmp_path):
    for name in ("gspo-dead", "gspo-alive", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOCK).touch()
    with open(tmp_path / "gspo-alive" / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gspo-alive", "other"]


def test_a_connection_that_was_idle_is_not_used_again(monkeypatch):
    monkeypatch.setattr("gspo.backends.vllm.server.IDLE", 0.3)
    ports = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            ports.append(self.client_address[1])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        server = Server(f"http://127.0.0.1:{listening.server_port}")

        async def ask():
            for pause in (0.0, 0.0, 0.6):
                await asyncio.sleep(pause)
                await server.ask({}, 10.0)
            await server.hang_up()

        asyncio.run(ask())
        listening.shutdown()
    assert ports[0] == ports[1] != ports[2]
