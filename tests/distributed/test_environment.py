"""What several ranks cannot do is refused by its key, with a remedy."""

import dataclasses

import pytest

from gspo.config.schema import Config
from gspo.distributed.environment import check_ranks


def config(**sections):
    made = Config()
    changed = {name: dataclasses.replace(getattr(made, name), **table) for name, table in sections.items()}
    return dataclasses.replace(made, **changed)


@pytest.mark.parametrize(
    "key, value, remedy",
    [
        ("scale.replicas", 3, "must divide scale.ranks = 4"),
        ("scale.experts", 3, "scale.ranks / scale.replicas = 4"),
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
    check_ranks(config(scale={"ranks": 8, "experts": 4, "replicas": 2}), 8)
    check_ranks(config(lora={"rank": 8}), 1)


@pytest.mark.parametrize("name, value", [("experts", 2), ("replicas", 2), ("restarts", 5), ("timeout", 9.0)])
def test_what_one_rank_has_no_use_for_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"scale.{name} = {value:g}.* has no effect on one rank"):
        check_ranks(config(scale={name: value}), 1)
