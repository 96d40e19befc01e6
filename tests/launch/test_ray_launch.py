"""Ranks on a Ray cluster, real ones of real runs: `make test-ray` has an environment with Ray."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from gspo.config.rollout import SamplerConfig
from gspo.launch.ray_launch import check_answers, connected, numbered
from tests.launch.ray_cluster import OWN, cluster_of
from tests.launch.started import apart, begin, completions, finished, processes, steps, variables_of, wait_for

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here: make test-ray")


@pytest.fixture(scope="module")
def cluster():
    with cluster_of(2) as variables:
        yield variables


@pytest.fixture(scope="module")
def by_processes(place):
    """A run of 6 steps whose ranks are processes of this machine."""
    status, output = finished(begin(place, "by-processes", "--scale.ranks=2", "--train.steps=6"))
    assert status == 0, output
    return "by-processes"


def on_ray(place, name, *arguments, ranks=2, **options):
    return begin(place, name, "--scale.launcher=ray", f"--scale.ranks={ranks}", *arguments, **options)


def ranks_of(name):
    """The ranks of a run on this machine by number: each process and the one that started it."""
    found = {}
    for pid, parent in processes().items():
        with suppress(OSError, ValueError):
            if f"--log.dir={name}\0" in Path(f"/proc/{pid}/cmdline").read_text() and "RANK" in (own := variables_of(pid)):
                found[int(own["RANK"])] = pid, parent
    return found


def kill(place, process, name, after, number, its_actor=False):
    """After so many steps; returns when the run has as many again."""
    wait_for(lambda: steps(place, name) >= after)
    rank, actor = ranks_of(name)[number]
    os.kill(actor if its_actor else rank, signal.SIGKILL)
    killed, before = time.monotonic(), steps(place, name)
    wait_for(lambda: not Path(f"/proc/{rank}").exists())  # an actor takes its rank along
    wait_for(lambda: steps(place, name) < before or process.poll() is not None)
    wait_for(lambda: steps(place, name) >= before or process.poll() is not None)
    print(f"{'actor of ' * its_actor}rank {number} killed after step {before}: {time.monotonic() - killed:.1f} s")


@with_ray
def test_ranks_and_actors_that_are_killed_cost_the_steps_since_the_last_checkpoint(place, cluster, by_processes):
    process = on_ray(place, "killed", "--train.steps=6", env=cluster)
    kill(place, process, "killed", 2, 1)
    kill(place, process, "killed", 4, 0, its_actor=True)
    status, output = finished(process)
    assert status == 0, output
    again = "ended by SIGKILL: the run goes on from its last checkpoint (restart"
    assert f"rank 1 was {again} 1" in output and f"rank 0 was {again} 2" in output, output
    assert "the actor of rank 0" in output and "the actor of rank 1" not in output
    assert completions(place, "killed") == completions(place, by_processes) and apart(place, "killed", by_processes) == 0
    assert output.count("model   killed/model") == 1  # the leader's output comes whole, to its last line


@with_ray
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)], ids=["ctrl-c", "closed"]
)
def test_a_terminals_signals_save_and_end_the_runs_own_cluster(place, number):
    name = f"stopped-{number:d}"
    process = on_ray(place, name, "--train.steps=1000", "--train.save_every=500", env=OWN, start_new_session=True)
    wait_for(lambda: steps(place, name) >= 1)
    os.killpg(process.pid, number)  # as a terminal does: to all that the user has started
    status, output = finished(process)
    assert status == 130 and f"{signal.Signals(number).name}: finishing this step, then saving" in output, output
    assert list((place / name / "checkpoints").glob("step_*/state.pt")) and not ranks_of(name)
    wait_for(lambda: subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True).returncode)


@with_ray
def test_an_error_of_its_own_ends_a_run_once(place, cluster):
    status, output = finished(on_ray(place, "failed", "--reward.functions=letters:fails", ranks=1, env=cluster))
    assert status == 1 and "the grader's disk is full" in output and "restart" not in output, output
    assert output.count("gspo: error") == 1, output


@with_ray
def test_a_run_for_which_the_cluster_has_no_place_says_so(place, cluster):
    status, output = finished(on_ray(place, "large", "--scale.timeout=1", ranks=3, env=cluster))
    assert status == 1 and "no place for 3 CPUs in scale.timeout = 1 s: Ray has 2, 2 of them free" in output, output


@with_ray
def test_a_run_that_waits_for_a_place_can_be_interrupted(place, cluster):
    process = on_ray(place, "waits", ranks=3, env=cluster)
    assert any("waiting for 3 CPUs" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    status, output = finished(process)
    assert status == 130 and "gspo: interrupted before anything was begun" in output, output


def refused(place, **variables):
    """What a run on Ray says that cannot begin."""
    status, output = finished(on_ray(place, "refused", env=os.environ | variables))
    assert status == 2, output
    return output


@with_ray
def test_what_cannot_be_done_with_ray_is_refused(place):
    assert "RAY_ADDRESS = 'ray://head:10001': Ray Client cannot" in refused(place, RAY_ADDRESS="ray://head:10001")
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    assert 'scale.launcher = "ray", but torchrun has started' in refused(place, **torchrun)


def test_a_cluster_that_is_gone_is_no_long_wait(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        check_answers()
    with pytest.raises(ValueError, match=f"RAY_ADDRESS = '{address}': no cluster answers there .*refused.*: name another"):
        check_answers()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(address)
    for begins_one in ("local", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", begins_one)
        check_answers()
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(ValueError, match=f"last Ray cluster of this machine = '{address}': no cluster .*`ray stop` clears"):
        check_answers()
    (tmp_path / "ray" / "ray_current_cluster").unlink()
    check_answers()


def test_ranks_of_a_machine_are_numbered_in_a_row():
    assert numbered([("a", "3"), ("b", "0"), ("a", "1")]) == [(0, 2, 0, "3,1"), (2, 2, 1, "3,1"), (1, 1, 0, "0")]
    assert numbered([("a", "")] * 2) == [(0, 2, 0, ""), (1, 2, 1, "")]


@pytest.mark.parametrize(("has", "then", "kind"), [(4.0, 0.0, "GPU"), (0.0, 4.0, "CPU")])
def test_a_restart_asks_for_what_the_run_began_with(monkeypatch, tmp_path, has, then, kind):
    """It waits for a machine with GPUs instead of going on with CPUs. What Ray would tell is given: no GPU is needed."""
    resources, asked = {"CPU": 8.0, "GPU": has}, []

    def placement_group(bundles, strategy):
        asked.append(bundles)
        raise InterruptedError

    places = SimpleNamespace(placement_group=placement_group, remove_placement_group=None)
    util = SimpleNamespace(placement_group=places, get_node_ip_address=lambda: "10.0.0.1")
    nothing = lambda **options: None  # noqa: E731
    ray = SimpleNamespace(init=nothing, shutdown=nothing, cluster_resources=lambda: resources, util=util)
    for name, module in (("ray", ray), ("ray.util", util), ("ray.util.placement_group", places)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # no cluster of this machine
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with connected(1.0, SamplerConfig()) as (start, address):
        for _ in range(2):
            with pytest.raises(InterruptedError), start(["gspo"], 2, {}):
                pass
            resources["GPU"] = then
    assert asked == [[{kind: 1}] * 2] * 2 and address == "10.0.0.1"
