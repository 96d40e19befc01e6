"""A run of two ranks to which others are compared, and an engine."""

import os
import socket
import subprocess
import sys
import time

import pytest

from gspo.backends.vllm.process import free_port
from tests.launch.started import ROOT, begin, fill, finished


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, rows, a reward and the settings of a run. Each module has its own: their runs have names."""
    return fill(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The folder of a run of 6 steps on two ranks."""
    place = fill(tmp_path_factory.mktemp("unbroken"))
    status, output = finished(begin(place, "unbroken", "--scale.ranks=2", "--train.steps=6"))
    assert status == 0, output
    return place / "unbroken"


def answers(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def engine():
    """The address of a server that samples from the models that it is given."""
    port = free_port()
    script = ROOT / "tests" / "backends" / "vllm" / "stand_in_model.py"
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen([sys.executable, str(script), f"--port={port}"], env=os.environ | {"PYTHONPATH": path})
    while not answers(port):  # a run begins by asking it
        assert process.poll() is None
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()
