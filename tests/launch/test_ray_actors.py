"""Actors with servers, on a real cluster of one machine: `make test-ray` has an environment with Ray. Whole runs are in
vllm/engine/test_ray.py.
"""

import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.server import Server
from gspo.config.files import from_dict
from gspo.launch.ray_actors import EngineOnRay, actor_at, engine_hosts
from tests.launch.ray_cluster import OWN, another_machine, can_mount, cluster_of
from tests.launch.started import begin, finished, processes, wait_for
from tests.patience import PATIENCE

with_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here: make test-ray")
VLLM = "--sampler.engine=vllm", f"--sampler.python={sys.executable}"
SERVES = """
import http.server, json, os, sys

class Tells(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        sent = json.dumps(dict(os.environ) | {"host": sys.argv[1], "pid": os.getpid(), "parent": os.getppid()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

print("serving", flush=True)
http.server.HTTPServer((sys.argv[1], int(sys.argv[3])), Tells).serve_forever()
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Three places on a cluster whose machine has an environment of its own."""
    machine = OWN | {"OF_THE_MACHINE": "yes", "VLLM_LOGGING_LEVEL": "INFO", "RANK": "5", "MASTER_ADDR": "10.9.8.7"}
    with cluster_of(5, machine, gpus=5) as variables, pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        import ray  # reads the token
        from ray.util.placement_group import placement_group

        ray.init(log_to_driver=False, logging_level="error")
        try:
            group = placement_group([{"CPU": 1}] + [{"CPU": 1}] * 3)
            assert group.wait(PATIENCE)
            yield engines_in(group, 1, 3, "CPU", 1)
        finally:
            ray.shutdown()


def engines_in(group, first, count, kind, size):
    """The leader's side of actors in these bundles of a placement group."""
    import ray

    actors = [actor_at(group, first + i, kind, size) for i in range(count)]
    return [EngineOnRay(actor, ray.get(actor.place.remote())[0]) for actor in actors]


def server_at(host, tmp_path):
    command = [sys.executable, "-c", SERVES, host.address]
    return Server(f"http://{host.address}", command, tmp_path / "vllm.log", {"GSPO_KEY": "secret"}, "secret", host)


def gone(pid):
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or " Z " in stat.read_text()


@with_ray
def test_a_server_starts_with_its_machines_environment_and_ends(hosts, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("OF_THE_LEADER", "yes")
    server = server_at(hosts[0], tmp_path)
    server.start()
    found = server.call("/")
    wanted = {"OF_THE_MACHINE": "yes", "VLLM_LOGGING_LEVEL": "DEBUG", "GSPO_KEY": "secret", "GSPO_OWNED": "1"}
    assert wanted.items() <= found.items() and found["host"] == hosts[0].address
    leaked = [n for n in found if n.startswith("RAY_") or n in ("RANK", "MASTER_ADDR", "OF_THE_LEADER")]
    assert not leaked and "serving" in server.last_words()
    server.stop()
    assert gone(found["pid"]) and not server.answers()


@with_ray
def test_each_server_sees_gpus_of_its_own(hosts, tmp_path):
    """As Ray gives them: it was told of five, and one is a rank's."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([{"GPU": 1}] + [{"GPU": 2}] * 2)
    assert group.wait(PATIENCE)
    seen = []
    for number, host in enumerate(engines_in(group, 1, 2, "GPU", 2)):
        (tmp_path / str(number)).mkdir()
        server = server_at(host, tmp_path / str(number))
        server.start()
        seen.append(server.call("/")["CUDA_VISIBLE_DEVICES"].split(","))
        server.stop()
        ray.kill(host.actor)
    remove_placement_group(group)
    assert [len(gpus) for gpus in seen] == [2, 2] and len({gpu for gpus in seen for gpu in gpus} & set("01234")) == 4


@with_ray
def test_one_that_ends_or_cannot_start_says_why(hosts, tmp_path):
    server = server_at(hosts[0], tmp_path)
    server.command = [sys.executable, "-c", "raise SystemExit('Error: no')"]
    with pytest.raises(EngineError, match=r"vLLM ended with status 1: .*Error: no"):
        server.start()
    server.command = ["/no/such/python", "x"]
    with pytest.raises(EngineError, match=rf"can be started at {server.host.address}: .*/no/such/python"):
        server.start()


@with_ray
def test_one_whose_process_was_killed_is_started_again(hosts, tmp_path):
    server = server_at(hosts[1], tmp_path)
    server.start()
    before = server.call("/")["pid"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: server.process.poll() == -signal.SIGKILL)
    server.start()
    assert server.call("/")["pid"] != before
    server.stop()


@with_ray
def test_one_whose_actor_died_is_lost_with_it(hosts, tmp_path):
    """Its standard input closes: gspo_vllm.py ends by that. The stand-in does not read it, so its actor is asked first."""
    host = hosts[2]
    server = server_at(host, tmp_path)
    server.command = [sys.executable, "-c", "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"]
    process = host.begin(server.command, server.log, server.variables)
    wait_for(lambda: server.log.exists() and server.log.read_text().endswith("\n"))
    pid = int(server.log.read_text())
    assert process.poll() is None
    parents = processes()
    os.kill(parents[parents[pid]], signal.SIGKILL)
    wait_for(lambda: gone(pid))
    lost = rf"the actor of the engine at {host.address} died, or its machine did \(The actor is dead [\w ]+\)$"
    with pytest.raises(EngineError, match=lost):
        process.poll()
    with pytest.raises(EngineError, match="the actor of the engine"):
        server.start()
    process.end()


GROUP = """
import os, signal, subprocess, sys

child = subprocess.Popen(["sleep", "1000"])
print(os.getpid(), child.pid, flush=True)
sys.stdin.read()
os.killpg(0, signal.SIGKILL)
"""


@with_ray
def test_one_whose_actor_is_ended_by_ray_leaves_nothing(hosts, tmp_path):
    """As where the controller is gone. Ray kills the actor's children, and theirs, which hold the GPU, must end too: at the
    end of its standard input gspo_vllm.py does what this stand-in does.
    """
    import ray
    from ray.util.placement_group import placement_group

    group = placement_group([{"CPU": 1}])
    assert group.wait(PATIENCE)
    actor = actor_at(group, 0, "CPU", 1)
    ray.get(actor.start_engine.remote([sys.executable, "-c", GROUP], str(tmp_path / "log"), {}))
    wait_for(lambda: (tmp_path / "log").read_text().endswith("\n"))
    pids = [*map(int, (tmp_path / "log").read_text().split())]
    assert not any(map(gone, pids))
    ray.kill(actor)
    wait_for(lambda: all(map(gone, pids)))


@with_ray
def test_a_folder_that_a_machine_does_not_see(hosts, tmp_path):
    file = tmp_path / "seen"
    file.write_text("now")
    assert hosts[0].read(str(file)) == "now"
    file.unlink()
    assert hosts[0].read(str(file)) is None


@with_ray
@pytest.mark.skipif(not can_mount(), reason="no rights to hide a folder from a process here")
def test_a_machine_that_does_not_see_the_exchange_stops_the_run_at_its_start(place):
    """Before the model is loaded: its folder is empty."""
    (place / "exchange").mkdir()
    (place / "model").rename(place / "no-model")
    (place / "model").mkdir()
    try:
        with cluster_of(1) as cluster, another_machine(cluster, 1, place / "exchange"):
            given = f"--sampler.weight_dir={place / 'exchange'}"
            run = begin(place, "blind", "--scale.launcher=ray", "--scale.ranks=1", *VLLM, given, env=cluster)
            status, output = finished(run)
    finally:
        (place / "model").rmdir()
        (place / "no-model").rename(place / "model")
    assert status == 2 and "restart" not in output, output
    assert f"sampler.weight_dir = '{place / 'exchange'}': the vLLM engines get their weights through" in output, output
    assert "these machines do not see there what the leader writes" in output and "name a folder that all" in output
    assert not list((place / "exchange").iterdir()) and not (place / "blind").exists()


@pytest.mark.parametrize(
    "sections",
    [
        {"sampler": {"engine": "vllm"}},
        {"scale": {"launcher": "ray"}},
        {"scale": {"launcher": "ray"}, "sampler": {"engine": "vllm", "urls": ["http://127.0.0.1:1"]}},
    ],
)
def test_runs_whose_engines_ray_does_not_place(sections):
    with engine_hosts(from_dict(sections)) as hosts:
        assert hosts == []
