"""Commands that are asked to end: what they have started ends with them, and nothing of it stays."""

import os
import signal
import time
from contextlib import suppress

import pytest

from tests.backends.vllm.stand_in_model import as_python
from tests.launch.started import begin, finished, left, wait_for


def asked_to_end(place, name, number, command, *arguments, begun):
    """A command with an engine of its own is asked to end: while that starts, or (begun) when it samples, which takes long.
    Returns its exit status, its output, and the folders of the exchange and of temporary files.
    """
    exchange, scratch, programs = folders = [place / f"{name}-{kind}" for kind in ("exchange", "tmp", "bin")]
    for folder in folders:
        folder.mkdir()
    engine = "--sampler.engine=vllm", f"--sampler.python={as_python(programs)}", f"--sampler.weight_dir={exchange}"
    slow, more = "--sampler.engine_args={pace = 0.2}", os.environ | {"TMPDIR": str(scratch)}
    process = begin(place, name, *engine, slow, *arguments, command=command, env=more)

    def weights():
        with suppress(FileNotFoundError):  # they are just being replaced
            return [path.stat().st_ino for path in exchange.glob("gspo-*/weights")]
        return []

    wait_for(weights, process=process)
    if begun:  # the first update has put others into their place
        first = weights()
        wait_for(lambda: weights() not in ([], first), process=process)
        time.sleep(2.0)
    assert process.poll() is None
    process.send_signal(number)
    status, output = finished(process)  # where it samples already, it finishes its step: a minute
    wait_for(lambda: not left("TMPDIR", str(scratch)))
    return status, output, exchange, scratch


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_evaluation_ends_its_engine(place, number):
    some = "--eval.num_prompts=8"
    status, output, exchange, scratch = asked_to_end(place, f"eval-{number}", number, "eval", some, begun=True)
    assert status == 130 and "gspo: interrupted" in output, output
    assert not list(exchange.iterdir()) and not list(scratch.iterdir())


def test_a_run_that_loads_ends_its_engine(place):
    status, output, exchange, scratch = asked_to_end(place, "loads", signal.SIGTERM, "train", begun=False)
    assert status == 130, output
    assert not list(exchange.iterdir()) and not list(scratch.iterdir())
