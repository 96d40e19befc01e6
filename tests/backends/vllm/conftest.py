import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from gspo.backends.vllm.process import free_port
from gspo.backends.vllm.sampler import VLLMSampler
from gspo.backends.vllm.server import GENERATE, WORKERS, Server
from tests.backends.vllm.engines import Bigrams, Engines
from tests.patience import PATIENCE
from tests.tiny_run import model


@pytest.fixture(scope="module")
def tiny():
    return model()


@pytest.fixture
def engines():
    """Stand-ins that end with the test."""
    made = Engines()
    yield made
    for process in made.processes.values():
        process.kill()
        process.wait()


@pytest.fixture
def fleet_of(engines, tmp_path, tiny, monkeypatch):
    """Makes a sampler of so many engines that hold version 1, and their ports. stale: numbers of those that stay at it."""
    monkeypatch.setattr("gspo.backends.vllm.fleet.PAUSE", 0.05)
    monkeypatch.setattr("gspo.backends.vllm.fleet.POLL", 0.1)
    samplers = []

    def make(count, stale=(), timeout=PATIENCE, batch_size=4):
        ports = [free_port() for _ in range(count)]
        servers = [Server(engines.start(port, *["--stale"] * (i in stale))) for i, port in enumerate(ports)]
        folder = tmp_path / str(len(samplers))
        folder.mkdir()
        notes = []
        sampler = VLLMSampler(tiny, servers, folder, 1.0, batch_size, timeout, notes.append)
        sampler.notes, sampler.transfer = notes, make.transfer() or sampler.transfer
        samplers.append(sampler)
        sampler.fleet.start()
        sampler.load(make.weights(1))
        return sampler, ports

    make.transfer = lambda: None  # the folder
    make.weights = lambda version, **options: Bigrams(version, tiny.config.vocab_size, **options)
    yield make
    for sampler in samplers:
        sampler.close()


@pytest.fixture
def engine():
    """An HTTP server. `completions` are the answers to requests for completions, one after the other, the last one again and
    again, with what happens before they are sent; `lacks` are paths that it does not know.
    """
    completions, asked, lacks = [], [], set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            path = self.path.split("?")[0]
            asked.append((path, body))
            status, answer = 200, {}
            if path in lacks:
                status = 404
            elif path == GENERATE:
                scripted = (400, {}) if not body else completions.pop(0) if len(completions) > 1 else completions[0]
                status, answer, *then = scripted
                for happens in then:
                    happens()
            elif path == WORKERS:
                answer = {"results": [None]}
            said = isinstance(answer, bytes)
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if said else "application/json")
            self.end_headers()
            self.wfile.write(answer if said else json.dumps(answer).encode())

        do_GET = do_POST

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    server.completions, server.asked, server.lacks = completions, asked, lacks
    server.handler = Handler
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    server.shutdown()


@pytest.fixture
def on_gpu(monkeypatch):
    """What torch would tell of the trainer's GPU is given."""
    gpu = type("Properties", (), {"uuid": "GPU-a"})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    return torch.device("cuda", 0)
