"""What several ranks cannot do is refused by its key, with a remedy."""

from contextlib import nullcontext

import pytest

from gspo.config.files import from_dict
from gspo.distributed.environment import check_ranks


def config(**sections):
    return from_dict(sections)


def test_what_ranks_cannot_do_is_refused(subtests):
    for ranks, key, value, remedy in (
        (4, "scale.data_parallel_replicas", 3, "must divide scale.ranks = 4"),
        (4, "scale.expert_parallel", 3, "scale.ranks / scale.data_parallel_replicas = 4"),
        (4, "scale.ranks", 2, "but 4 were started"),
        (4, "algorithm.name", "ppo", "without a critic"),
        (4, "lora.rank", 8, "one rank"),
        (4, "optimizer.name", "adamw_8bit", "leave it out"),
        (4, "train.offload_optimizer", True, "leave it out"),
        (4, "train.offload_reference", True, "leave it out"),
        (4, "model.trust_remote_code", True, "one rank"),
        (4, "model.device", "cuda:1", "the GPU of its number"),
        (4, "sampler.sleep_level", 1, "one GPU"),
        (1, "scale.expert_parallel", 2, "has no effect on one rank"),
        (1, "scale.data_parallel_replicas", 2, "has no effect on one rank"),
        (1, "scale.restarts", 5, "has no effect on one rank"),
        (1, "scale.timeout", 9.0, "has no effect on one rank"),
    ):
        section, name = key.split(".")
        with subtests.test(key, ranks=ranks):
            with pytest.raises(ValueError, match=f"{key} = ") as error:
                check_ranks(config(**{section: {name: value}}), ranks)
            assert remedy in str(error.value)


def test_what_they_can_do_passes():
    check_ranks(config(scale={"launcher": "ray", "restarts": 5, "timeout": 9.0}), 1)  # starts again, waits for a place
    check_ranks(config(scale={"ranks": 8, "expert_parallel": 4, "data_parallel_replicas": 2}), 8)
    check_ranks(config(lora={"rank": 8}), 1)


def test_ranks_on_several_machines_need_an_exchange_folder(monkeypatch, subtests):
    """Whoever has started them."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    lacks = pytest.raises(ValueError, match=r"sampler.weight_dir is not set: ranks on several machines .* name one$")
    servers = {"urls": ["http://127.0.0.1:1"]}
    for beside, sampler, needed in (
        ("1", {}, True),
        ("2", {}, False),
        ("1", {"weight_transfer": "broadcast"}, True),  # the engines' first weights
        ("1", servers | {"weight_transfer": "auto"}, True),
        ("1", servers | {"weight_transfer": "broadcast"}, False),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", beside)
        with subtests.test(beside=beside, sampler=sampler), lacks if needed else nullcontext():
            check_ranks(config(sampler={"engine": "vllm"} | sampler), 2)
