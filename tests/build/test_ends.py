"""Commands that are asked to end: what they have started ends with them, and nothing of it stays."""

import os
import signal
import time

import pytest

from tests.backends.vllm.stand_in_model import as_python
from tests.build.started import begin, finished, left, wait_for

pytestmark = pytest.mark.timeout(200)


def asked_to_end(place, name, number, command, *arguments):
    """A command with an engine of its own that takes long, and is asked to end when the engine has been asked. Returns its
    exit status, its output, and the folders of the exchange and of temporary files.
    """
    folders = [place / f"{name}-{kind}" for kind in ("exchange", "tmp", "bin")]
    for folder in folders:
        folder.mkdir()
    exchange, scratch, programs = folders
    engine = "--sampler.engine=vllm", f"--sampler.python={as_python(programs)}", f"--sampler.exchange={exchange}"
    slow = '--sampler.engine_args={"pace": 0.2}'
    more = os.environ | {"TMPDIR": str(scratch)}
    process = begin(place, name, *engine, slow, *arguments, command=command, env=more)
    wait_for(lambda: list(exchange.glob("gspo-*/weights/*.safetensors")))
    time.sleep(3.0)  # it loads them, proves them, and samples
    assert process.poll() is None
    process.send_signal(number)
    status, output = finished(process, 60)
    wait_for(lambda: not left("TMPDIR", str(scratch)), 20)
    return status, output, exchange, scratch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_evaluation_ends_its_engine(place, number):
    status, output, exchange, scratch = asked_to_end(place, f"eval-{number}", number, "eval", "--eval.num_prompts=8")
    assert status == 130 and "gspo: interrupted" in output, output
    assert not list(exchange.iterdir()) and not list(scratch.iterdir())


def test_a_run_that_loads_ends_its_engine(place):
    status, output, exchange, scratch = asked_to_end(place, "loads", signal.SIGTERM, "train", "--train.steps=1000")
    assert status == 130, output
    assert not list(exchange.iterdir()) and not list(scratch.iterdir())
