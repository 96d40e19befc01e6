"""A program that answers as vLLM's server does and samples from a table of bigrams: it starts at once.

With --stale it keeps the first weights that it is given, and says that it has the new ones; with --context=N it refuses
prompts of N tokens.
"""

import argparse
import json
import os
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from safetensors.numpy import load_file

PLUGIN = str(Path(__file__).parents[3] / "src/gspo/backends/vllm/plugin")
GENERATE = "/inference/v1/generate"


class Engine:
    """Its weights, the requests under way, and what was counted."""

    def __init__(self, pace, stale, context=None):
        self.pace, self.stale, self.context = pace, stale, context
        self.table, self.version, self.swaps = None, "default", 0
        self.asleep = set()
        self.running = threading.Event()
        self.running.set()
        self.lock = threading.Lock()
        self.counts = {"asked": 0, "now": 0, "most": 0}

    def post(self, path, body, query):
        if path == "/pause":
            self.running.clear()
            self.swaps += 1
        elif path == "/collective_rpc":
            return {"results": [self.work(body.get("method", "gspo_reload"), *body["args"])]}
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        elif path == "/resume":
            self.running.set()
        elif path == "/sleep":
            self.running.clear()
            self.asleep, self.table = {"weights", "kv_cache"}, None
        elif path == "/wake_up":
            if query.get("tags") == "kv_cache" and self.table is None:
                raise RuntimeError("its cache comes after its weights")
            self.asleep -= {query["tags"]} if query else {"weights", "kv_cache"}
            if not self.asleep:
                self.running.set()
        return {}

    def work(self, method, *args):
        """What a worker of vLLM's does (plugin/gspo_vllm.py:Extension)."""
        if method == "gspo_place":
            return {"rank": 0, "workers": 1, "device": "cpu", "gpu": "", "nccl": "", "sleeps": True}
        if "weights" in self.asleep and method != "gspo_join":
            raise RuntimeError("there is no memory for weights: it sleeps")
        if self.running.is_set() and method != "gspo_join":
            raise RuntimeError("it samples while its weights change")
        if method == "gspo_join":
            self.group = joined(*args)
        elif method == "gspo_receive":
            received, name = self.group
            if args[0] != name:
                raise RuntimeError("given up")
            table = np.concatenate([x.numpy() for name, x in received() if name.startswith("table")])
        else:
            table = load_file(f"{args[0]}/model.safetensors")["table"]
        if method != "gspo_join" and (self.table is None or not self.stale):
            self.table = table.astype(np.float64)
        return None

    def generate(self, body):
        with self.lock:
            self.counts["asked"] += 1
            self.counts["now"] += 1
            self.counts["most"] = max(self.counts["most"], self.counts["now"])
        try:
            self.running.wait()
            if self.asleep:
                raise RuntimeError("it sleeps")
            return {"choices": [self.sampled(body["token_ids"][-1], **body["sampling_params"])]}
        finally:
            with self.lock:
                self.counts["now"] -= 1

    def sampled(self, last, max_tokens, temperature, seed, stop_token_ids, **rest):
        g, table, version, swaps = np.random.default_rng(seed), self.table, self.version, self.swaps
        tokens, logp, reason = [], [], "length"
        while len(tokens) < max_tokens:
            time.sleep(self.pace)
            if self.swaps > swaps:
                reason = "abort"
                break
            scores = table[last] / temperature
            log_p = scores - np.logaddexp.reduce(scores)
            last = min(int(np.searchsorted(np.exp(log_p).cumsum(), g.random())), len(log_p) - 1)
            tokens.append(last)
            logp.append({"logprob": float(log_p[last])})
            if last in stop_token_ids:
                reason = "stop"
                break
        spans = [{"version": version, "start": 0, "end": len(tokens)}] if tokens else []
        return {"token_ids": tokens, "logprobs": {"content": logp}, "finish_reason": reason, "weight_versions": spans}


def joined(address, port, backend, seconds, name):
    """What gets the weights that the trainer sends to this group, and its name."""
    sys.path.append(PLUGIN)
    import gspo_transfer as wire  # loads torch, which takes seconds
    import torch

    limit, device = float(seconds), torch.device("cpu")
    store = wire.store_at(address, int(port), 2, limit)
    group = wire.join(store, 1, 2, backend, wire.facing(address, int(port)), device, limit)
    return partial(wire.received, group, device, limit), name


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        path, engine = urlsplit(self.path).path, self.server.engine
        query = dict(parse_qsl(urlsplit(self.path).query))
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if path == GENERATE and (not body or len(body["token_ids"]) >= (engine.context or 1e9)):
            self.answer(400, {})
            return
        try:
            self.answer(200, engine.generate(body) if path == GENERATE else engine.post(path, body, query))
        except RuntimeError as error:  # of a broadcast, or asleep
            self.answer(500, {"error": str(error)})

    def do_GET(self):
        engine = self.server.engine
        asleep = {"is_sleeping": bool(engine.asleep) or not engine.running.is_set()}
        known = {"/is_sleeping": asleep, "/v1/models": {"data": [{"id": "model", "max_model_len": engine.context}]}}
        self.answer(200, known.get(self.path, engine.counts))

    def answer(self, status, body):
        sent = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args):
        pass


class Listening(ThreadingHTTPServer):
    request_queue_size, daemon_threads, allow_reuse_address = 128, True, True

    def handle_error(self, request, client_address):
        """Whoever asked has hung up."""


def end_with(parent):
    """No engine outlives its test."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--pace", type=float)
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--context", type=int)
    given = parser.parse_args()
    server = Listening(("127.0.0.1", given.port), Handler)
    server.engine = Engine(given.pace, given.stale, given.context)
    server.serve_forever(0.05)
