"""Engines that sample from bigrams, each a process of its own, for tests that kill them and hold them up."""

import asyncio
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import torch
from safetensors.numpy import save_file

from gspo.backends.vllm.server import Server
from gspo.types import Prompt, Reading, Sampling
from tests.patience import PATIENCE

STAND_IN = Path(__file__).with_name("stand_in.py")
PACE = 0.003  # seconds a token
COMMAND = [sys.executable, str(STAND_IN), f"--pace={PACE}"]
CPU = torch.device("cpu")
PROMPTS = [Prompt(str(i), "", (2, 3 + i)) for i in range(8)]
LONG = Sampling(40, seed=5)


class Engines:
    """Stand-ins in processes of their own."""

    def __init__(self):
        self.processes = {}

    def start(self, port, *options):
        self.processes[port] = subprocess.Popen([*COMMAND, f"--port={port}", *options])
        self.wait(port)
        return f"http://127.0.0.1:{port}"

    def wait(self, port):
        until(lambda: Server(f"http://127.0.0.1:{port}").answers())

    def signal(self, port, number):
        self.processes[port].send_signal(number)

    def kill(self, port):
        self.signal(port, signal.SIGKILL)
        self.processes[port].wait()

    def counts(self, port):
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).json()


def until(holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)


def tokens(rollouts):
    return [rollout.tokens.tolist() for rollout in rollouts]


@dataclasses.dataclass
class Bigrams:
    """interfaces.Weights of a table of bigrams. between: what happens before its last layer. width: more numbers a layer."""

    version: int
    size: int = 24
    temperature: float = 1.0
    between: Callable[[], object] = lambda: None
    width: int = 0

    @property
    def table(self):
        return np.random.default_rng(self.version).normal(size=(self.size, self.size)).astype(np.float32)

    def save(self, folder, *, merged=False):
        Path(folder).mkdir(parents=True)
        save_file({"table": self.table}, f"{folder}/model.safetensors")

    def layers(self):
        for number, part in enumerate(torch.from_numpy(self.table).chunk(3)):
            if number == 2:
                self.between()
            yield {f"table.{number}": part, "beside": torch.zeros(self.width, dtype=torch.bfloat16)}

    def read(self, completions):
        return [Reading(self.logp(one.tokens)[one.sampled]) for one in completions]

    def logp(self, tokens):
        """Of each token after the one before; 0 for the first."""
        log_p = torch.from_numpy(self.table / self.temperature).double().log_softmax(-1)
        return torch.cat([torch.zeros(1), log_p[tokens[:-1], tokens[1:]].float()])


def expected(fleet_of, n=6, version=1):
    """What one engine alone samples."""
    sampler, _ = fleet_of(1)
    if version > 1:
        sampler.load(fleet_of.weights(version))
    return tokens(sampler.generate(PROMPTS, n, LONG))


def a_probe(body):
    return body["sampling_params"]["max_tokens"] != LONG.max_new_tokens


def failing(member, error, spares=a_probe, hangs=0):
    """Has an engine fail all requests that it does not `spare`, but for the first, which hang. The requests."""
    plain, asked = member.engine.ask, []

    async def ask(body, timeout):
        if spares(body):
            return await plain(body, timeout)
        asked.append(body)
        if len(asked) <= hangs:
            await asyncio.sleep(1e6)
        raise error

    member.engine.ask = ask
    return asked
