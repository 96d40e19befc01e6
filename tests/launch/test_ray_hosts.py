"""The leader's side of engines on Ray: test_ray_engines.py has the servers, and vllm/engine/test_ray.py whole runs."""

import sys
from contextlib import nullcontext
from importlib.util import find_spec

import pytest

from gspo.config.files import from_dict
from gspo.launch.ray_hosts import engine_hosts
from tests.launch.ray_cluster import another_machine, can_mount, cluster_of
from tests.launch.started import begin, finished

VLLM = "--sampler.engine=vllm", f"--sampler.python={sys.executable}"


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here: make test-ray")
@pytest.mark.skipif(not can_mount(), reason="no rights to hide a folder from a process here")
def test_a_machine_that_does_not_see_the_exchange_stops_the_run_at_its_start(place):
    """Before the model is loaded: there is none."""
    (place / "exchange").mkdir()
    (place / "model").rename(place / "no-model")
    try:
        with cluster_of(1) as cluster, another_machine(cluster, 1, place / "exchange"):
            given = f"--sampler.exchange={place / 'exchange'}"
            run = begin(place, "blind", "--scale.launcher=ray", "--scale.ranks=1", *VLLM, given, env=cluster)
            status, output = finished(run)
    finally:
        (place / "no-model").rename(place / "model")
    assert status == 2 and "restart" not in output, output
    assert f"sampler.exchange = '{place / 'exchange'}': the vLLM engines get their weights through" in output, output
    assert "these machines do not see there what the leader writes" in output and "name a folder that all" in output
    assert not list((place / "exchange").iterdir()) and not (place / "blind").exists()


SERVERS = {"urls": ["http://127.0.0.1:1"]}


@pytest.mark.parametrize(
    ("beside", "sampler", "needed"),
    [
        (1, {}, True),
        (2, {}, False),
        (1, {"weight_transfer": "broadcast"}, True),  # the engines' first weights
        (1, SERVERS, True),
        (1, SERVERS | {"weight_transfer": "auto"}, True),
        (1, SERVERS | {"weight_transfer": "broadcast"}, False),
    ],
)
def test_ranks_on_several_machines_need_a_folder_that_is_named(monkeypatch, beside, sampler, needed):
    """Whoever has started them. It is asked for where the test above ends its run: before the model is loaded."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(beside))
    lacks = pytest.raises(ValueError, match=r"sampler.exchange is not set: ranks on several machines .* name one$")
    config = from_dict({"sampler": {"engine": "vllm"} | sampler})
    with lacks if needed else nullcontext(), engine_hosts(config) as hosts:
        assert hosts == []


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
