"""What several ranks cannot do is refused by its key, with a remedy."""

from contextlib import nullcontext

import pytest

from gspo.config.files import from_dict
from gspo.distributed.environment import check_ranks


def config(**sections):
    return from_dict(sections)


@pytest.mark.parametrize(
    "key, value, remedy",
    [
        ("scale.data_parallel_replicas", 3, "must divide scale.ranks = 4"),
        ("scale.expert_parallel", 3, "scale.ranks / scale.data_parallel_replicas = 4"),
        ("scale.ranks", 2, "but 4 were started"),
        ("algorithm.name", "ppo", "without a critic"),
        ("lora.rank", 8, "one rank"),
        ("train.layout", "packed", "shared"),
        ("train.offload_optimizer", True, "leave it out"),
        ("train.offload_reference", True, "leave it out"),
        ("model.trust_remote_code", True, "one rank"),
        ("model.device", "cuda:1", "the GPU of its number"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused(key, value, remedy):
    section, name = key.split(".")
    with pytest.raises(ValueError, match=f"{key} = ") as error:
        check_ranks(config(**{section: {name: value}}), 4)
    assert remedy in str(error.value)


def test_what_they_can_do_passes():
    check_ranks(config(scale={"launcher": "ray", "restarts": 5, "timeout": 9.0}), 1)  # starts again, waits for a place
    check_ranks(config(scale={"ranks": 8, "expert_parallel": 4, "data_parallel_replicas": 2}), 8)
    check_ranks(config(lora={"rank": 8}), 1)


@pytest.mark.parametrize(
    "name, value", [("expert_parallel", 2), ("data_parallel_replicas", 2), ("restarts", 5), ("timeout", 9.0)]
)
def test_what_one_rank_has_no_use_for_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"scale.{name} = {value:g}.* has no effect on one rank"):
        check_ranks(config(scale={name: value}), 1)


SERVERS = {"urls": ["http://127.0.0.1:1"]}


@pytest.mark.parametrize(
    ("beside", "sampler", "needed"),
    [
        (1, {}, True),
        (2, {}, False),
        (1, {"weight_transfer": "broadcast"}, True),  # the engines' first weights
        (1, SERVERS | {"weight_transfer": "auto"}, True),
        (1, SERVERS | {"weight_transfer": "broadcast"}, False),
    ],
)
def test_ranks_on_several_machines_need_an_exchange_folder(monkeypatch, beside, sampler, needed):
    """Whoever has started them."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(beside))
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    lacks = pytest.raises(ValueError, match=r"sampler.weight_dir is not set: ranks on several machines .* name one$")
    with lacks if needed else nullcontext():
        check_ranks(config(sampler={"engine": "vllm"} | sampler), 2)
