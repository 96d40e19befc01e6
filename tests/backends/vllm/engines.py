"""Engines that sample from bigrams, each a process of its own, for tests that kill them and hold them up."""

import signal
import subprocess
import sys
import time
from pathlib import Path

from gspo.backends.vllm.calls import http
from gspo.backends.vllm.server import Server
from tests.patience import PATIENCE

STAND_IN = Path(__file__).with_name("stand_in.py")
PACE = 0.003  # seconds a token
COMMAND = [sys.executable, str(STAND_IN), f"--pace={PACE}"]


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
        return http().get(f"http://127.0.0.1:{port}/health", timeout=PATIENCE).json()


def until(holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.01)
