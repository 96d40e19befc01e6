"""Ray clusters of a test's own: nothing of Ray's in the home folder is used or written."""

import os
import subprocess
import sys
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path

from tests.patience import PATIENCE

RAY = str(Path(sys.executable).with_name("ray"))
OWN = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "RAY_ADDRESS": "local"}


@contextmanager
def cluster_of(cpus, environment=OWN, gpus=0):
    """The variables with which a run finds a cluster of so many CPUs, which is there before it and after it. environment:
    that of its machine. gpus: that it is told to have.
    """
    options = ["--head", "--port=0", f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--include-dashboard=false"]
    started = subprocess.Popen(
        [RAY, "start", *options, "--disable-usage-stats", "--block"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said = ""
        while "address='" not in said:
            said = started.stdout.readline()
            assert said, "ray start has ended"
        yield OWN | {"RAY_ADDRESS": said.split("address='")[1].split("'")[0]}
    finally:
        started.terminate()
        started.communicate(timeout=PATIENCE)
        Path(tempfile.gettempdir(), "ray", "ray_current_cluster").unlink(missing_ok=True)  # as `ray stop` does


ALONE = ["unshare", "--mount", "sh", "-c"]


def can_mount():
    """Whether a folder can be hidden from a process here."""
    return subprocess.run([*ALONE, "mount -t tmpfs none /mnt"], capture_output=True, check=False).returncode == 0


@contextmanager
def another_machine(variables, cpus, hidden):
    """A second node of a cluster, with so many CPUs, which sees another folder where the rest sees `hidden`. Its process."""
    start = f"{RAY} start --address={variables['RAY_ADDRESS']} --num-cpus={cpus} --num-gpus=0 --disable-usage-stats --block"
    node = subprocess.Popen(
        [*ALONE, f"mount -t tmpfs none {hidden} && exec {start}"], env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert any("Ray runtime started" in line for line in node.stdout)
        yield node
    finally:
        node.terminate()
        node.communicate(timeout=PATIENCE)
