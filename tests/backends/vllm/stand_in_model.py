"""As stand_in.py, but it samples from the model whose weights it is given: `python stand_in_model.py --port PORT`, and what
a server of ours is given (`as_python`).
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from tests.backends.vllm.stand_in import Engine, Handler, Listening, end_with


class ModelEngine(Engine):
    """Samples one token at a time, by the seed of the request alone."""

    def __init__(self, pace):
        super().__init__(pace, False)
        self.model, self.turn = None, threading.Lock()

    def post(self, path, body, query):
        if path != "/collective_rpc":
            return super().post(path, body, query)
        with self.turn:
            self.model = AutoModelForCausalLM.from_pretrained(body["args"][0], dtype=torch.float32).eval()
        return {"results": [None]}

    @torch.no_grad()
    def generate(self, body):
        self.running.wait()
        asked, tokens, logp, reason = body["sampling_params"], [], [], "length"
        g = torch.Generator().manual_seed(asked["seed"])
        with self.turn:
            version = self.version
            while len(tokens) < asked["max_tokens"] and reason == "length":
                time.sleep(self.pace)
                ids = torch.tensor([[*body["token_ids"], *tokens]])
                log_p = (self.model(input_ids=ids).logits[0, -1] / asked["temperature"]).log_softmax(-1)
                tokens.append(int(torch.multinomial(log_p.exp(), 1, generator=g)))
                logp.append({"logprob": float(log_p[tokens[-1]])})
                reason = "stop" if tokens[-1] in asked["stop_token_ids"] else reason
        spans = [{"version": version, "start": 0, "end": len(tokens)}]
        made = {"token_ids": tokens, "logprobs": {"content": logp}, "finish_reason": reason, "weight_versions": spans}
        return {"choices": [made]}


def as_python(folder):
    """A program that can be sampler.python: it starts this in place of vLLM."""
    program = folder / "python"
    root = Path(__file__).parents[3]
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{root}:$PYTHONPATH" exec {sys.executable} {__file__} "$@"\n')
    program.chmod(0o755)
    return program


def end_without_owner():
    """As a server of ours ends: with the pipe that whoever started it holds."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--pace", type=float, default=0.0)
    given, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    owned = "GSPO_OWNED" in os.environ
    end, of = (end_without_owner, ()) if owned else (end_with, (os.getppid(),))
    threading.Thread(target=end, args=of, daemon=True).start()
    server = Listening(("127.0.0.1", given.port), Handler)
    server.engine = ModelEngine(given.pace)
    server.serve_forever(0.05)
