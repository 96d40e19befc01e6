"""Whole copies of the model that the embedded sampler keeps beside the policy, and whether they have room."""

from __future__ import annotations

from pathlib import Path

import torch

from gspo.backends.hf.load import without_weights
from gspo.config.import_function import pick_device
from gspo.config.schema import Config
from gspo.distributed.environment import local_world_size

GIB = 2**30
FLOAT32, BFLOAT16 = 4, 2  # bytes
MOMENTS = 2  # of AdamW, each as large as the weights
REMEDY = 'set sampler.engine = "vllm", which keeps none in a rank'


def copies(config: Config, ranks: int) -> int:
    """Whole models that the leader holds to sample: one where its policy is in shards, and one with rounded weights."""
    if config.sampler.engine != "embedded":
        return 0
    return (ranks > 1) + (config.sampler.quantize != "none")


def itemsize(config: Config) -> int:
    """Bytes of a weight where it is trained, and in a copy."""
    return FLOAT32 if config.model.dtype == "float32" else BFLOAT16


def standing_bytes(config: Config) -> dict[str, int]:
    """Bytes that each number of the model that a rank holds takes all the time, by what for."""
    size = itemsize(config)
    moments = 0 if config.train.offload_optimizer else MOMENTS * size
    reference = size if config.algorithm.beta and not config.train.offload_reference else 0
    rows = {"weights": size, "gradients": size, "AdamW's moments": moments, "reference model": reference}
    return {name: each for name, each in rows.items() if each}


def check_copies(config: Config, ranks: int) -> None:
    """Raises ValueError where what the leader of several ranks will hold cannot fit, before anything of it is loaded.
    config: resolved.
    """
    if ranks == 1 or not copies(config, ranks):
        return
    device = pick_device(config.model.device)
    numbers = sum(p.numel() for p in without_weights(config.model).parameters())
    copied = copies(config, ranks) * numbers * itemsize(config)
    shard = numbers * sum(standing_bytes(config).values()) * config.scale.replicas / ranks  # at least
    if torch.cuda.is_available():
        shard *= device.type == "cuda"  # else the copies alone are on the CPU
    else:
        shard *= local_world_size()  # which the ranks of this machine share
    room = free(device)
    if copied + shard > room:
        raise ValueError(
            f'sampler.engine = "embedded": the leader needs {copied / GIB:.1f} GiB for {words(copies(config, ranks))} and '
            f"{shard / GIB:.1f} GiB for shards, gradients and moments, but {room / GIB:.1f} GiB are free: {REMEDY}"
        )


def words(count: int) -> str:
    """So many copies."""
    return "a whole copy of the model" if count == 1 else f"{count} whole copies of the model"


def free(device: torch.device) -> float:
    """Bytes that are free on a GPU, or that programs may still take of the machine's; infinite where nobody tells."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float("inf")
