import resource
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from safetensors import SafetensorError

import gspo
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.open import (
    FILES,
    SPARE,
    allow_connections,
    check_sampler,
    check_sleep,
    direct_arguments,
    own_devices,
    sampler_of,
    servers,
)
from gspo.backends.vllm.process import LocalHost
from gspo.backends.vllm.server import KEY
from gspo.config.policy import LoraConfig
from gspo.config.rollout import SamplerConfig
from gspo.config.schema import Config
from gspo.interfaces import SamplerError
from gspo.learner.weights import PolicyWeights
from tests.backends.vllm.engine.servers import DENSE
from tests.backends.vllm.places import AtPlace
from tests.tiny_run import PIECES, ROWS, likes_a, model, settings

SMALL = SamplerConfig(engine="vllm", engines=2, batch_size=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, r"sampler.engine = 'vllm' needs vllm: .*sampler\.python"),
        ({"python": "/no/such/python"}, "sampler.python = '/no/such/python': no such program"),
        ({"urls": ["http://127.0.0.1:9"], "weight_dir": "/no/such"}, "sampler.weight_dir = '/no/such': no such folder"),
        (
            {"python": sys.executable, "sleep_level": 2},
            "sampler.sleep_level = 2: the learner is on cpu, and vLLM gives back memory of a GPU alone: leave it out",
        ),
        ({"urls": ["http://127.0.0.1:9"]}, r"sampler.urls: 'http://127.0.0.1:9': nothing answers .*gspo_vllm.py"),
    ],
)
def test_what_is_refused_before_a_run_has_a_folder(tmp_path, changes, message):
    tiny = model()
    with pytest.raises(ValueError, match=message):
        gspo.train(
            tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer,
            config=settings(tmp_path / "run", sampler={"engine": "vllm"} | changes),
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["data_parallel_size", "data-parallel-size"])
def test_one_server_of_several_copies_gets_no_broadcast(name):
    args = {name: 2}
    given = SamplerConfig(engine="vllm", python=sys.executable, weight_transfer="broadcast", engine_args=args)
    message = r"data_parallel_size = 2\} and sampler.weight_transfer = .*: .* set sampler.engines instead, or set .*"
    with pytest.raises(ValueError, match=message):
        check_sampler(given)
    for other in ({"weight_transfer": "folder"}, {"engine_args": {name: 1}}):
        check_sampler(replace(given, **other))


@pytest.mark.parametrize(
    ("engine", "adapters", "level", "message"),
    [
        (AtPlace("GPU-a"), False, 2, ""),
        (AtPlace("GPU-a"), True, 1, ""),
        (AtPlace("GPU-a", sleeps=False), False, 0, ""),
        (AtPlace("GPU-a", sleeps=False), False, 1, "forbids it: start it with --enable-sleep-mode, or leave it out"),
        (AtPlace(""), False, 1, "forbids it"),
        (AtPlace("GPU-a"), True, 2, "samples with adapters .* which level 2 drops: set it to 1"),
    ],
)
def test_who_may_sleep(engine, adapters, level, message):
    engine.adapters = adapters
    with pytest.raises(ValueError, match=f"sampler.sleep_level = {level}: .*{message}") if message else nullcontext():
        check_sleep(SamplerConfig(engine="vllm", sleep_level=level), [engine])


def test_the_gpus_of_this_machine(monkeypatch):
    """Not run on a GPU: what torch would count is given."""
    cpu, gpu, two = torch.device("cpu"), torch.device("cuda", 1), SamplerConfig(engine="vllm", engines=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert own_devices(two, gpu, {}) == [{}, {}]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-a,6,7")
    assert own_devices(two, cpu, {}) == [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "GPU-a"}]
    assert own_devices(two, gpu, {}) == [{"CUDA_VISIBLE_DEVICES": "4"}, {"CUDA_VISIBLE_DEVICES": "6"}]
    one = SamplerConfig(engine="vllm")  # shares the learner's GPU, as gpu_memory_utilization says
    assert own_devices(one, gpu, {}) == [{"CUDA_VISIBLE_DEVICES": "GPU-a"}] and own_devices(one, cpu, {}) == [{}]
    first, several = torch.device("cuda", 0), {"tensor_parallel_size": 2}
    assert own_devices(one, first, {}) == [{"CUDA_VISIBLE_DEVICES": "4"}]
    assert own_devices(one, first, several) == [{"CUDA_VISIBLE_DEVICES": "GPU-a,6"}]  # it leaves the learner its own
    assert own_devices(one, gpu, several) == [{"CUDA_VISIBLE_DEVICES": "4,6"}]
    assert own_devices(one, first, {"tensor_parallel_size": 4}) == [{}]  # it needs all, so it shares one
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # ranks 0 and 1 learn on the first two
    assert own_devices(two, gpu, {}) == [{"CUDA_VISIBLE_DEVICES": "6"}, {"CUDA_VISIBLE_DEVICES": "7"}]
    assert own_devices(SamplerConfig(engine="vllm"), gpu, {}) == [{"CUDA_VISIBLE_DEVICES": "6"}]
    with pytest.raises(ValueError, match=r"each needs 2 of the 4 GPUs of this machine for itself, and the learner leaves 2"):
        own_devices(two, gpu, several)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert own_devices(two, gpu, {}) == [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "3"}]


def test_arguments_become_flags(tmp_path):
    given = SamplerConfig(engine="vllm", python="py", engines=2, start_timeout=9.0, sync_timeout=7.0)
    arguments = {
        "dtype": "half", "gpu_memory_utilization": 0.4, "enforce_eager": True, "enable_prefix_caching": False,
        "hf_overrides": {"a": 1}, "x": ["b", "c"],
    }  # fmt: skip
    one, other = servers(given, tmp_path / "weights", arguments, torch.device("cpu"))
    assert one.command[0] == "py" and one.command[-10:] == [
        "half", "--gpu-memory-utilization", "0.4", "--enforce-eager", "--no-enable-prefix-caching", "--hf-overrides",
        '{"a": 1}', "--x", "b", "c",
    ]  # fmt: skip
    assert (one.start_timeout, one.sync_timeout) == (9.0, 7.0)
    key = one.variables[KEY]  # nobody sees it in the list of processes
    assert len(key) > 40 and key != other.variables[KEY] and not any(key in word for word in one.command)
    assert one.headers == {"Authorization": f"Bearer {key}"}


def test_settings_that_are_arguments_of_vllm(tmp_path):
    assert direct_arguments(SamplerConfig(engine="vllm", engine_args={"x": 1})) == {}
    drafts = {"method": "ngram", "num_speculative_tokens": 2}
    given = SamplerConfig(
        engine="vllm", python="py", quantization="fp8_per_tensor", kv_cache_dtype="fp8", speculative_config=drafts
    )
    (server,) = servers(given, tmp_path / "weights", direct_arguments(given), torch.device("cpu"))
    assert server.command[-6:] == [
        "--quantization", "fp8_per_tensor", "--kv-cache-dtype", "fp8", "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 2}',
    ]  # fmt: skip


def test_experts_alone_are_rounded_to_int8(tmp_path):
    """Without any, vLLM would round nothing."""
    tiny = build_tiny(DENSE, longest_match_tokenizer(PIECES))
    config = Config(sampler=SamplerConfig(engine="vllm", quantization="int8_per_channel_weight_only"))
    policy = HFPolicy(tiny)
    with pytest.raises(ValueError, match=r"'int8_per_channel_weight_only': .* this model has none: set \"fp8"):
        sampler_of(config, policy, PolicyWeights(policy, 0), tmp_path)


@pytest.mark.parametrize("rounded", [{"quantization": "fp8_per_tensor"}, {"kv_cache_dtype": "fp8"}, {}])
def test_an_engine_that_rounds_gets_adapters_merged(tmp_path, rounded):
    """The check of its weights would let an old adapter pass."""
    config = Config(sampler=SamplerConfig(engine="vllm", python="py", **rounded), lora=LoraConfig(rank=2))
    policy = HFPolicy(adapted(build_tiny(DENSE, longest_match_tokenizer(PIECES)), config.lora))
    sampler = sampler_of(config, policy, PolicyWeights(policy, 0), tmp_path)
    (member,) = sampler.fleet.members
    assert member.engine.adapters == (not rounded) == ("--enable-lora" in member.engine.command)
    sampler.close()


def test_no_room_for_the_first_weights_is_said_with_the_remedy(tmp_path, monkeypatch):
    """As in a container, whose /dev/shm has 64 MiB by default."""
    config = Config(sampler=SamplerConfig(engine="vllm", python="py"))
    policy = HFPolicy(build_tiny(DENSE, longest_match_tokenizer(PIECES)))

    def full(*args, **options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(policy.model, "save", full)
    with pytest.raises(SamplerError, match=r"cannot be written to .* MiB left .*No space left.*sampler.weight_dir"):
        sampler_of(config, policy, PolicyWeights(policy, 0), tmp_path)


def test_an_argument_with_dashes_goes_before_ours(tmp_path):
    given = SamplerConfig(engine="vllm", python="py", engine_args={"enable-lora": False})
    config = Config(sampler=given, lora=LoraConfig(rank=2))
    policy = HFPolicy(adapted(build_tiny(DENSE, longest_match_tokenizer(PIECES)), config.lora))
    sampler = sampler_of(config, policy, PolicyWeights(policy, 0), tmp_path)
    (member,) = sampler.fleet.members
    assert not member.engine.adapters and "--enable-lora" not in member.engine.command
    sampler.close()


def test_engines_elsewhere_listen_where_others_reach_them(tmp_path):
    """What they say lies beside the folder of the weights, which all machines see."""
    given = SamplerConfig(engine="vllm", engines=2, python="/opt/vllm/bin/python")
    hosts = [LocalHost(), LocalHost()]
    hosts[0].address, hosts[1].address = "10.0.0.1", "fd00::2"
    made = servers(given, tmp_path / "gspo-x" / "weights", {}, torch.device("cpu"), hosts)
    assert [server.log for server in made] == [tmp_path / "gspo-x-vllm-0.log", tmp_path / "gspo-x-vllm-1.log"]
    for server, host in zip(made, hosts):
        at = server.command.index("--host")
        assert server.command[at : at + 2] == ["--host", host.address] and server.command[0] == given.python
        assert server.host is host and server.ours


def test_an_engine_of_ours_sees_its_gpus_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,4,6,7")
    given, two = SamplerConfig(engine="vllm", engines=2, python=sys.executable), {"tensor_parallel_size": 2}
    made = servers(given, tmp_path / "weights", two, torch.device("cpu"))
    assert len({server.log for server in made}) == 2
    for server, sees in zip(made, ("0,4", "6,7")):
        server.log = tmp_path / "vllm.log"
        tells = "import os; raise SystemExit('Error: ' + os.environ['CUDA_VISIBLE_DEVICES'])"
        server.command = [sys.executable, "-c", tells]
        with pytest.raises(EngineError, match=rf"Error: {sees}$"):
            server.start()


@pytest.fixture
def limits():
    """The limits of this process, which come back."""
    before = resource.getrlimit(FILES)
    yield before
    resource.setrlimit(FILES, before)


def test_the_limit_rises_to_what_the_engines_take(limits, tmp_path):
    """Twice as many connections as requests, if there may be as many, and never less than before."""
    _, hard = limits
    for given, wanted in (
        (SMALL, SPARE + 16),
        (replace(SMALL, batch_size=40), SPARE + 160),
        (SMALL, SPARE + 160),
        (replace(SMALL, urls=["a", "b", "c"], batch_size=100), SPARE + 600),
        (replace(SMALL, batch_size=(hard - SPARE) // 2), hard),
    ):
        if given is SMALL and wanted == SPARE + 16:
            resource.setrlimit(FILES, (SPARE + 8, hard))
        allow_connections(given)
        assert resource.getrlimit(FILES) == (wanted, hard)
    resource.setrlimit(FILES, (SPARE + 8, hard))
    policy = HFPolicy(model())
    with pytest.raises(ValueError, match=rf"sampler.batch_size = {hard}: .* {2 * hard + SPARE} open files, .*ulimit -Hn"):
        sampler_of(Config(sampler=replace(SMALL, batch_size=hard)), policy, None, tmp_path)
    assert resource.getrlimit(FILES) == (SPARE + 8, hard)
