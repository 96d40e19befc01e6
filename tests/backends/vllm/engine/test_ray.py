"""Ranks and real engines that Ray has placed: in an environment with Ray, and with vLLM's interpreter."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.backends.vllm.engine.servers import lines
from tests.backends.vllm.engine.test_ranks import fill, found, run
from tests.launch.ray_cluster import cluster_of
from tests.launch.started import finished, left, steps, wait_for
from tests.launch.started import processes as all_parents

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here")
ON_RAY = "--scale.launcher=ray", "--train.save_every=1"


@pytest.fixture(scope="module")
def cluster():
    with cluster_of(4) as variables:
        yield variables


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("ray"))


def begin(folder, name, environment, *arguments):
    (folder / f"exchange-{name}").mkdir(exist_ok=True)
    words = [sys.executable, "-m", "gspo", "train", "run.toml", f"--log.dir={name}", *ON_RAY, *arguments]
    words.append(f"--sampler.weight_dir={folder / f'exchange-{name}'}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True, **pipes)


def processes(*words):
    """Those whose command lines have these words: number, that of who started them, and environment."""
    matching = []
    for at in Path("/proc").glob("[0-9]*"):
        try:
            command = (at / "cmdline").read_text()
            parent = int((at / "stat").read_text().rpartition(")")[2].split()[1])
            variables = dict(e.partition("=")[::2] for e in (at / "environ").read_text().split("\0"))
        except (OSError, ValueError):
            continue
        if all(word in command for word in words):
            matching.append((int(at.name), parent, variables))
    return matching


def engines(name):
    """The servers of a run: number, actor, environment. Between a server and its actor stands who waits for it."""
    parents, beside = all_parents(), {one[0] for one in processes("supervisor.py", "gspo_vllm.py")}
    servers = processes("gspo_vllm.py", f"exchange-{name}/")
    return [(pid, parents.get(at), own) for pid, at, own in servers if pid not in beside and "GSPO_OWNED" in own]


def rank(name, number):
    """A rank's process."""
    return next(one[0] for one in processes(f"--log.dir={name}") if one[2].get("RANK") == str(number))


def serving(folder, name):
    """How many engines sampled in each step."""
    return [int(line["engines/serving"]) for line in lines(folder / name)]


def test_a_run_on_ray_is_the_run_without_it_whatever_dies(folder, cluster):
    """An engine's actor dies, and the others go on; a rank dies, and the next life has all engines again. (In one process
    rounding is other, and in 14 steps a clip has made more of that.)
    """
    one, whole, _ = run(folder, "one", "--scale.ranks=2", "--train.steps=14")
    process = begin(folder, "two", cluster, "--scale.ranks=2", "--sampler.engines=2", "--train.steps=14")
    wait_for(lambda: steps(folder, "two") >= 2, process=process)
    (engine, actor, variables), (other, _, _) = engines("two")
    assert not {"RANK", "MASTER_ADDR", "GSPO_ENGINES"} & set(variables) and variables["GSPO_KEY"]
    os.kill(actor, signal.SIGKILL)
    wait_for(lambda: 1 in serving(folder, "two"), process=process)
    assert [one[0] for one in engines("two")] == [other]  # the actor has taken it along
    reached = steps(folder, "two")
    os.kill(rank("two", 1), signal.SIGKILL)
    wait_for(lambda: steps(folder, "two") > reached, process=process)
    assert engine not in {one[0] for one in engines("two")} and len(engines("two")) == 2
    status, output = finished(process)
    assert status == 0, output
    assert "is left out and started again" in output and "the actor of the engine at" in output, output
    assert "rank 1 was ended by SIGKILL: the run goes on from its last checkpoint (restart 1" in output, output
    assert serving(folder, "two")[-1] == 2
    assert not engines("two") and not list((folder / "exchange-two").iterdir())
    assert "vLLM" in (folder / "two" / "vllm_0.log").read_text()
    two, shards, _ = found(folder / "two")
    assert two == one and len(one) == 14 * 32
    apart = max(float((whole[name] - shards[name]).abs().max()) for name in whole)
    print(f"weights differ by {apart:.2g}")
    assert whole.keys() == shards.keys() and apart < 1e-6


def test_the_engines_of_a_run_end_with_it(folder, cluster):
    """After Ctrl-C, which saves, and where the controller is killed."""
    process = begin(folder, "ends", cluster, "--train.steps=1000")
    wait_for(lambda: steps(folder, "ends") >= 1, process=process)
    assert len(engines("ends")) == 1
    os.killpg(process.pid, signal.SIGINT)
    status, output = finished(process)
    assert status == 130 and not engines("ends"), output
    process = begin(folder, "ends", cluster, "--train.steps=1000", "--resume")
    reached = steps(folder, "ends")
    wait_for(lambda: steps(folder, "ends") > reached, process=process)
    ((_, _, variables),) = engines("ends")
    assert len(left("GSPO_KEY", variables["GSPO_KEY"])) > 2  # the server, who waits for it, and what the server has started
    process.kill()
    wait_for(lambda: not left("GSPO_KEY", variables["GSPO_KEY"]) and not processes("--log.dir=ends"))
