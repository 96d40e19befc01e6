"""What several ranks cannot do is refused by its key, with a remedy."""

import dataclasses

import pytest

from gspo.config.ranks import check_ranks
from gspo.config.schema import Config


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
        ("sampler.in_process", True, "process of its own"),
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
    check_ranks(config(scale={"ranks": 8, "experts": 4, "replicas": 2}), 8)
    check_ranks(config(lora={"rank": 8}, sampler={"in_process": True}), 1)
    with pytest.raises(ValueError, match=r"scale.experts = 2"):
        check_ranks(config(scale={"experts": 2}), 1)
