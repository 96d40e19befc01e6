from gspo.config.commands import check_command
from gspo.config.engines import devices_each, servers_of
from gspo.config.files import from_dict
from gspo.config.rollout import SamplerConfig


def test_the_servers_that_a_run_starts():
    assert servers_of(SamplerConfig()) == 0
    assert servers_of(SamplerConfig(engine="vllm")) == 1 and servers_of(SamplerConfig(engine="vllm", engines=3)) == 3
    assert servers_of(SamplerConfig(engine="vllm", urls=["http://127.0.0.1:1"])) == 0


def test_the_gpus_that_a_server_uses():
    assert devices_each({}) == 1 and devices_each({"tensor_parallel_size": 4, "max_model_len": 9}) == 4
    assert devices_each({"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 3}) == 12
    assert devices_each({"tensor-parallel-size": 2, "pipeline_parallel-size": 3, "tensor": 5}) == 6


def test_a_size_that_is_none_is_refused_as_it_is_read(refuses):
    def read(arguments):
        from_dict({"sampler": {"engine": "vllm", "engine_args": arguments}})

    table = [
        (r"sampler.engine_args = {tensor_parallel_size = '2'}: expected a whole number", {"tensor_parallel_size": "2"}),
        (r"{pipeline_parallel_size = 0}", {"pipeline-parallel-size": 0}),
        (r"{data_parallel_size = 2.0}", {"data_parallel_size": 2.0}),
        (r"{data_parallel_size = True}", {"data_parallel_size": True}),
    ]
    refuses(read, table)
    own = {"engine": f"{__name__}:mine", "engine_args": {"data_parallel_size": "all"}}  # means what its function says
    assert from_dict({"sampler": own}).sampler.engine_args == own["engine_args"]


def mine(config, model, a=0):
    """An engine of the user's own."""


def test_a_function_is_an_engine_and_a_wrong_one_is_refused_before_anything_loads(refuses):
    base = {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}, "reward": {"functions": ["exact"]}}

    def check(sampler):
        check_command(from_dict(base | {"sampler": sampler}), "train")

    check({"engine": f"{__name__}:mine", "engine_args": {"a": 1}})
    table = [
        ("sampler.engine = 'vlm': allowed are embedded, vllm, module:function, did you mean vllm", {"engine": "vlm"}),
        ("sampler.engine = 'no_such:f': there is no module 'no_such'", {"engine": "no_such:f"}),
        ("has no function 'mine_is', did you mean mine", {"engine": f"{__name__}:mine_is"}),
        (r"engine_args = {'b': 1}: .*:mine cannot be called with", {"engine": f"{__name__}:mine", "engine_args": {"b": 1}}),
    ]
    refuses(check, table)
