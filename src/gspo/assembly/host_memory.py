"""Whole copies of the model that the embedded sampler keeps beside the policy, and whether they fit in memory."""

from __future__ import annotations

from pathlib import Path

import torch

from gspo.assembly.teacher import teacher_settings
from gspo.backends.hf.load import without_weights
from gspo.config.import_function import pick_device
from gspo.config.schema import Config
from gspo.distributed.environment import local_world_size

GIB = 2**30
FLOAT32, BFLOAT16 = 4, 2  # bytes
MOMENTS = 2  # of AdamW, each as large as the weights
COPY = "a whole copy of the model"
REMEDY = 'set sampler.engine = "vllm", which keeps none in a rank'


def copies(config: Config, ranks: int) -> int:
    """Whole models that the leader holds for sampling: one for the embedded sampler of a sharded policy."""
    return int(ranks > 1 and config.sampler.engine == "embedded")


def itemsize(config: Config) -> int:
    """Bytes per weight, in training and in a copy."""
    return FLOAT32 if config.model.dtype == "float32" else BFLOAT16


def standing_bytes(config: Config) -> dict[str, int]:
    """Bytes per weight on a rank that stay allocated throughout the run, by purpose."""
    size = itemsize(config)
    moments = 0 if config.train.offload_optimizer else MOMENTS * size
    reference = size if config.algorithm.beta and not config.train.offload_reference else 0
    rows = {"weights": size, "gradients": size, "AdamW's moments": moments, "reference model": reference}
    return {name: each for name, each in rows.items() if each}


def teacher_bytes(config: Config) -> int:
    """Bytes of the teacher's weights that stay allocated throughout the run; 0 without a teacher in this process."""
    if not config.teacher.local or config.train.offload_reference:
        return 0
    numbers = sum(p.numel() for p in without_weights(teacher_settings(config)).parameters())
    return numbers * (FLOAT32 if config.teacher.dtype == "float32" else BFLOAT16)


def check_copies(config: Config, ranks: int) -> None:
    """Raises ValueError, before anything is loaded, if the copies and the leader's shard cannot fit in memory."""
    if not copies(config, ranks):
        return
    device = pick_device(config.model.device)
    numbers = sum(p.numel() for p in without_weights(config.model).parameters())
    copied = numbers * itemsize(config)
    held = numbers * sum(standing_bytes(config).values()) + teacher_bytes(config)
    shard = held * config.scale.data_parallel_replicas / ranks  # a lower bound
    if device.type != "cuda":  # the ranks share their machine's memory
        shard *= local_world_size()
    room = free(device)
    if copied + shard > room:
        needs = f"{copied / GIB:.1f} GiB for {COPY} and {shard / GIB:.1f} GiB for shards, gradients and moments"
        why = f"the leader needs {needs}, but {room / GIB:.1f} GiB are free"
        raise ValueError(f'sampler.engine = "embedded": {why}: {REMEDY}')


def free(device: torch.device) -> float:
    """Free bytes of a GPU, or bytes of host memory still available to programs; infinite if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return float("inf")
