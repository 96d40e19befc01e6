"""Warns of settings that are slow on this machine."""

from __future__ import annotations

import functools
import logging
import os
import time

import torch
import torch.nn.functional as F

logger = logging.getLogger(__name__)
SLOW = 1.5  # times as long as in float32
WAITING = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"  # variables that say how threads wait for each other


@functools.cache
def slowdown(dtype: torch.dtype) -> float:
    """Processor seconds of a matrix product in `dtype`, as a multiple of those in float32: measured, for torch has no flag
    for it.
    """
    seconds = []
    for kind in (torch.float32, dtype):
        rows, weight = torch.ones(256, 512, dtype=kind), torch.ones(512, 512, dtype=kind)
        times = []
        for _ in range(4):  # the first one takes longer
            begin = time.process_time()
            F.linear(rows, weight)
            times.append(time.process_time() - begin)
        seconds.append(min(times))
    return seconds[1] / seconds[0]


def warn_if_slow(setting: str, remedy: str, dtype: torch.dtype, device: torch.device) -> None:
    """Warns if matrix products in `dtype` are slower than in float32 on this device, a CPU without instructions for them.
    setting: what chose `dtype`. remedy: the value to set instead.
    """
    if device.type != "cpu" or dtype == torch.float32 or (times := slowdown(dtype)) < SLOW:
        return
    name = str(dtype).removeprefix("torch.")
    logger.warning(
        f"{setting}: on this CPU a matrix product takes {times:.2g} times as long in {name} as in float32: set {remedy}"
    )


def warn_if_busy(device: torch.device) -> None:
    """Warns if other programs need the cores on which threads of this one wait for each other: by default they spin."""
    load, cores, threads = os.getloadavg()[0], os.cpu_count() or 1, torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or load <= cores or any(name in os.environ for name in WAITING):
        return
    logger.warning(
        f"the load of this machine is {load:.1f}, and it has {cores} cores: {threads} threads that wait for each other may "
        "be slower than one. Set OMP_WAIT_POLICY=PASSIVE, or OMP_NUM_THREADS=1"
    )
