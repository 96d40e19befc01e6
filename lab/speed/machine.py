"""The machine that a benchmark runs on: what it is, how fast it multiplies, and how much memory a step takes."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import time
from pathlib import Path

import torch

GIB = 1 << 30


class Memory:
    """The peak of a step above what stood before it, in GiB."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
            self.base = torch.cuda.memory_allocated(device)
        else:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            self.base = self._resident("VmRSS")

    def peak(self) -> float:
        """The highest so far."""
        if self.on_gpu:
            return (torch.cuda.max_memory_allocated() - self.base) / GIB
        return (self._resident("VmHWM") - self.base) / GIB

    @staticmethod
    def _resident(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def release() -> None:
    """Gives freed memory back to the system, where the C library can (glibc): what it keeps would hide a small peak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def free_memory(device: str) -> float:
    """Free memory in GiB."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0] / GIB
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) / (1 << 20) for line in lines if line.startswith("MemAvailable"))


def matmul_rate(device: str = "cpu", dtype: torch.dtype = torch.float32, size: int = 2048, repeats: int = 10) -> float:
    """Floating-point operations a second of a large matrix product, with the threads that are set: the median."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        a @ b
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / statistics.median(seconds[2:])


def rate_with(threads: int) -> float:
    """matmul_rate of the processor with so many threads, whatever is set."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return matmul_rate()
    finally:
        torch.set_num_threads(before)


def describe(device: str = "cpu") -> dict[str, str | int | float]:
    """Processor, memory and versions."""
    import transformers

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    facts: dict[str, str | int | float] = {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "matmul_gflops_2_threads": round(rate_with(2) / 1e9),
    }
    if device.startswith("cuda"):
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts
