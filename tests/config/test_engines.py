from gspo.config.engines import devices_each, servers_of
from gspo.config.rollout import SamplerConfig


def test_the_servers_that_a_run_starts():
    assert servers_of(SamplerConfig()) == 0
    assert servers_of(SamplerConfig(engine="vllm")) == 1 and servers_of(SamplerConfig(engine="vllm", engines=3)) == 3
    assert servers_of(SamplerConfig(engine="vllm", urls=["http://127.0.0.1:1"])) == 0


def test_the_gpus_that_a_server_uses():
    assert devices_each({}) == 1 and devices_each({"tensor_parallel_size": 4, "max_model_len": 9}) == 4
    assert devices_each({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 3}) == 12
