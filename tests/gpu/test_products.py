"""The head's product in float32, and ways to have it faster on a GPU's matrix units: how fast, and how far from float64.

The head takes half of an update on an H200 (docs/performance.md). A product of TF32 rounds its factors to 11 bits; with each
factor split into a TF32 and the TF32 of the rest, three products have 22 bits. Of bfloat16 (8 bits) three products have 16
bits, and six 24.
"""

import statistics
import time
from contextlib import contextmanager

import pytest
import torch

pytestmark = pytest.mark.gpu
ROWS, HIDDEN, WORDS = 8192, 1024, 16_384  # of a micro-batch, and a tenth of a large vocabulary
SMALL = 64, 32, 128


@contextmanager
def of_tf32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def split(x):
    """x as a number of TF32, and the rest, which TF32 rounds."""
    big = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return big, x - big


def parts(x, count):
    """x as a sum of so many numbers of bfloat16, but for the last one's rounding."""
    found = []
    for _ in range(count):
        found.append(x.bfloat16())
        x = x - found[-1].float()
    return found


def tf32(a, b):
    with of_tf32():
        return a @ b


def three_of_tf32(a, b):
    (a1, a2), (b1, b2) = split(a), split(b)
    with of_tf32():
        return (a1 @ b2).addmm_(a2, b1).addmm_(a1, b1)


def of_bfloat16(count):
    """Products of parts, the small ones first: those whose numbers add up to fewer than `count`."""

    def product(a, b):
        left, right = parts(a, count), parts(b, count)
        pairs = sorted(((i, j) for i in range(count) for j in range(count) if i + j < count), key=sum, reverse=True)
        total = None
        for i, j in pairs:
            if a.is_cuda:
                one = torch.mm(left[i], right[j], out_dtype=torch.float32)
            else:
                one = left[i].float() @ right[j].float()
            total = one if total is None else total.add_(one)
        return total

    return product


WAYS = {
    "float32": torch.mm, "one of TF32": tf32, "three of TF32": three_of_tf32, "three of bfloat16": of_bfloat16(2),
    "six of bfloat16": of_bfloat16(3),
}  # fmt: skip


def test_ways_to_multiply(device, report):
    rows, hidden, words = SMALL if device == "cpu" else (ROWS, HIDDEN, WORDS)
    draw = torch.Generator().manual_seed(0)
    a = torch.randn(rows, hidden, generator=draw).to(device)
    b = (torch.randn(words, hidden, generator=draw) * 2.5 / hidden**0.5).to(device).T
    exact = a[:64].double() @ b.double()
    seconds = {name: [] for name in WAYS}
    for turn in range(8):
        for name, way in WAYS.items():
            if device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            found = way(a, b)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name] += [time.perf_counter() - begin] if turn else []
            error = float((found[:64] - exact).abs().max())
            if turn == 0:
                bound = 0.1 if name == "one of TF32" else 1e-3
                report.check(f"a product of the head, {name}: largest error of logits of spread 2.5", error, most=bound)
    base = statistics.median(seconds["float32"])
    for name, own in seconds.items():
        report.tell(f"a product of the head, {name}: times as fast as float32", base / statistics.median(own))
