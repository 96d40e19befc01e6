"""Ranks that torchrun starts, and starts again: the lines of docs/scale.md, with two processes."""

import signal
import time

import pytest

from gspo.backends.vllm.process import free_port
from tests.launch.started import begin, finished, kill, left, wait_for
from tests.launch.test_faults import SAMPLE, UPDATE, same


def options(restarts, nodes=1, port=0):
    return (
        f"--nnodes={nodes}", f"--nproc-per-node={2 // nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
        f"--max-restarts={restarts}",
    )  # fmt: skip


KILLED = [("kill", 0, SAMPLE, 4), ("kill", 1, UPDATE, 4)]


@pytest.mark.parametrize("nodes, faults", [pytest.param(1, KILLED, marks=pytest.mark.slow), (2, KILLED[:1])])
def test_ranks_that_are_killed_are_started_again_and_go_on_from_the_last_checkpoint(place, unbroken, nodes, faults):
    """Of two agents of torchrun each counts the restarts that its own ranks have caused."""
    name = f"torchrun-{nodes}"
    given = options(len(faults), nodes, free_port() if nodes > 1 else 0)
    started = [begin(place, name, "--train.steps=6", faults=faults, torchrun=given) for _ in range(nodes)]
    try:
        ended = [finished(process) for process in started]
    finally:
        for process in started:
            process.kill()
        for pid in left("TMPDIR", str(place / f"{name}-tmp")):
            kill(pid)
    output = "".join(output for _, output in ended)
    assert [status for status, _ in ended] == [0] * nodes, output
    assert output.count("failed (exitcode: -9)") == len(faults), output
    assert same(place, name, unbroken)
    (place / "listing").unlink()


def test_another_life_resumes_no_run_of_another_command(place, unbroken):
    """torchrun starts ranks again whatever they ended by."""
    before = (place / unbroken / "metrics.jsonl").read_bytes()
    process = begin(place, unbroken, "--train.steps=9", torchrun=options(1))
    status, output = finished(process)
    assert status == 1 and output.count("the folder exists and is not empty") == 2, output
    assert (place / unbroken / "metrics.jsonl").read_bytes() == before


def test_ctrl_c_gives_the_ranks_the_seconds_that_the_option_names(place):
    """The variable of docs/scale.md makes torchrun's own limit one second here, so the option is what gives more."""
    process = begin(
        place, "ended", "--train.steps=1000", "--train.save_every=500", faults=[("wait", 0, SAMPLE, 2)],
        torchrun=(*options(0), "--shutdown-timeout=300"), env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"},
    )  # fmt: skip
    wait_for((place / "reached").exists, process=process)
    process.send_signal(signal.SIGINT)
    time.sleep(3.0)
    (place / "reached").unlink()
    _, output = finished(process)
    assert list((place / "ended" / "checkpoints").glob("step_*/state.pt")), output
