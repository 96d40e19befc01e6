"""The gradient of each objective against a naive float64 loop: largest relative error over many random batches."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from tests.objective.cases import BUDGET, value_and_gradient
from tests.objective.reference import objective


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Completions]:
    """Completions of 1 to 50 tokens whose ratios leave every clip range on both sides."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 51, (16,), generator=g)
    n = int(lengths.sum())
    old = -0.01 - 3 * torch.rand(n, generator=g, dtype=torch.float64)
    drift = 0.02 * torch.randn(16, generator=g, dtype=torch.float64)
    y = Completions.of(lengths)
    logp = old + 0.2 * torch.randn(n, generator=g, dtype=torch.float64) + drift[y.completion]
    return logp.clamp(max=-0.01), old, torch.randn(16, generator=g, dtype=torch.float64), y


def gradient(
    name: str, dtype: torch.dtype, logp: torch.Tensor, old: torch.Tensor, A: torch.Tensor, y: Completions
) -> torch.Tensor:
    """Of this project's loss, outer mean included, with respect to the log-probabilities."""
    row = ALGORITHMS[name]
    x = logp.to(dtype).requires_grad_()
    return value_and_gradient(name, x, old.to(dtype), A.to(dtype), y, row.epsilon, row.epsilon_high)[1].double()


def main(batches: int = 50) -> None:
    """Prints one line an algorithm."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'algorithm':12} {'clipped':>8} {'float64':>10} {'float32':>10}   max relative error, {batches} batches")
    for name, row in ALGORITHMS.items():
        worst = dict.fromkeys((torch.float64, torch.float32), 0.0)
        clipped = 0.0
        for seed in range(batches):
            logp, old, A, y = batch(seed)
            x = logp.clone().requires_grad_()
            lengths, clip = y.length.tolist(), (row.epsilon, row.epsilon_high)
            value = -objective(name, x, old, A.tolist(), lengths, *clip, BUDGET, **row.constants)
            (expected,) = torch.autograd.grad(value, x)
            clipped += float((expected == 0).double().mean()) / batches
            for dtype in worst:
                # float32 decides the same clips except on the edge of the range: compare where both have a gradient
                actual = gradient(name, dtype, logp, old, A, y)
                both = (
                    (actual != 0) & (expected != 0) if dtype == torch.float32 else torch.ones_like(actual, dtype=torch.bool)
                )
                error = (actual - expected)[both].abs() / expected[both].abs().clamp(min=1e-12)
                worst[dtype] = max(worst[dtype], float(error.max()))
        print(f"{name:12} {clipped:8.1%} {worst[torch.float64]:10.1e} {worst[torch.float32]:10.1e}")


if __name__ == "__main__":
    main()
