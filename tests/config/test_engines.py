import pytest

from gspo.config.engines import check_engine, check_sampler, devices_each, servers_of
from gspo.config.files import from_dict
from gspo.config.rollout import SamplerConfig


def test_the_servers_that_a_run_starts():
    assert servers_of(SamplerConfig()) == 0
    assert servers_of(SamplerConfig(engine="vllm")) == 1 and servers_of(SamplerConfig(engine="vllm", engines=3)) == 3
    assert servers_of(SamplerConfig(engine="vllm", urls=["http://127.0.0.1:1"])) == 0


def test_the_gpus_that_a_server_uses():
    assert devices_each({}) == 1 and devices_each({"tensor_parallel_size": 4, "max_model_len": 9}) == 4
    assert devices_each({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 3}) == 12


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "vllm", "quantize": "int4"}, "sampler.quantize = 'int4' rounds the embedded sampler's"),
        ({"engine": "vllm", "urls": ["http://x"], "python": "p"}, "sampler.urls names servers that run already"),
        ({"engine": "vllm", "urls": ["http://x"], "engines": 2}, "sampler.urls names servers that run already"),
        ({"engine": "vllm", "urls": ["http://x", "http://y", "http://x/"]}, "sampler.urls names 'http://x/' twice"),
        (
            {"engine": "vllm", "sleep_level": 1, "engines": 2},
            "sleep_level = 1 and sampler.engines = 2: several engines have",
        ),
        ({"engine": "vllm", "weight_transfer": "nccl"}, "sampler.weight_transfer = 'nccl'.*broadcast"),
        ({"engine": "vlm"}, "sampler.engine = 'vlm'.*vllm"),
        ({"engine": "vllm", "timeout": 0}, "sampler.timeout = 0"),
    ],
)
def test_settings_that_contradict(changes, message):
    with pytest.raises(ValueError, match=message):
        check_sampler(from_dict({"sampler": changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout": {"max_staleness": 1}}, "and rollout.max_staleness = 1: vLLM samples while the learner updates"),
        ({"scale": {"ranks": 2}}, "and scale.ranks = 2: it is for one GPU that learner and engine share"),
    ],
)
def test_who_leaves_an_engine_no_time_to_sleep(changes, message):
    with pytest.raises(ValueError, match=f"sampler.sleep_level = 2 {message}; leave one of them out"):
        check_sampler(config := from_dict({"sampler": {"engine": "vllm", "sleep_level": 2}} | changes))
    check_engine(config.sampler)  # where nothing is trained


@pytest.mark.parametrize("way", ["broadcast", "ipc"])
def test_adapters_take_the_folder(way):
    config = from_dict({"sampler": {"engine": "vllm", "weight_transfer": way}, "lora": {"rank": 4}})
    with pytest.raises(ValueError, match=rf'"{way}" is not for adapters \(lora.rank = 4\), which takes the folder'):
        check_sampler(config)
    check_engine(config.sampler)
