"""The leader's side of engines on Ray: test_ray_engines.py has the servers, and vllm/engine/test_ray.py whole runs."""

import os
import sys
from importlib.util import find_spec

import pytest
import torch.distributed as dist

from gspo.build.ray_hosts import engine_hosts
from gspo.config.files import from_dict
from tests.build.ray_cluster import another_machine, can_mount, cluster_of
from tests.build.started import begin, finished

pytestmark = pytest.mark.timeout(300)
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
            status, output = finished(run, 120)
    finally:
        (place / "no-model").rename(place / "model")
    assert status == 2 and "restart" not in output, output
    assert f"sampler.exchange = '{place / 'exchange'}': the vLLM engines get their weights through" in output, output
    assert "these machines do not see there what the leader writes" in output and "name a folder that all" in output
    assert not list((place / "exchange").iterdir()) and not (place / "blind").exists()


def test_ranks_on_several_machines_name_the_exchange_before_anything_is_loaded(place):
    """Two processes that are told of a machine each, and a model that is not there."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = {
        "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "GSPO_PARENT": str(os.getpid()),
    }  # fmt: skip
    ranks = [
        begin(place, "apart", "--model.path=no-model", *VLLM, env=os.environ | told | {"RANK": str(number)})
        for number in range(2)
    ]
    status, output = finished(ranks[0], 100)
    assert status == 2 and "sampler.exchange is not set: ranks on several machines write the weights" in output, output
    assert finished(ranks[1], 30)[0] == 0 and not (place / "apart").exists()


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
