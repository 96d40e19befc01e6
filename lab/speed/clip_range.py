"""Does `epsilon = "auto"` hold its target where few groups teach, and while the policy learns fast?

    python lab/speed/clip_range.py                             # 32 groups of 8 completions a step
    python lab/speed/clip_range.py --groups 4 --generations 2  # few completions

Each step has its groups in 4 mini-batches. The log-ratios are normal. Their spread grows within a step, as
updates add up, and from step to step by the factor in the table (30 % for the first 20 steps). The last column counts
tokens without advantage too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch

from gspo.objective.clip_range import AutoClip

STEPS, GROUPS, GENERATIONS, TARGET, SEEDS = 40, 32, 8, 0.15, 20
GROWTH = {
    "steady": lambda step: 1.0,
    "growing by 15 % a step": lambda step: 1.15**step,
    "growing by 30 % a step": lambda step: 1.3 ** min(step, 20),
    "shrinking by 10 % a step": lambda step: 0.9**step,
}


def shares(
    teaching: float, growth: str, seed: int, groups: int = GROUPS, generations: int = GENERATIONS
) -> Iterator[tuple[float, float, float]]:
    """Of each step: clipped share of the tokens with an advantage, of all, and the lower end of the range."""
    rng = torch.Generator().manual_seed(seed)
    clip = AutoClip(3e-4, 4e-4, TARGET)
    for step in range(STEPS):
        clipped, taught = 0.0, 0
        for part in range(4):
            n = groups * generations // 4
            teaches = (torch.rand(n // generations, generator=rng) < teaching).repeat_interleave(generations)
            A = torch.randn(n, generator=rng) * teaches
            z = torch.randn(n, generator=rng, dtype=torch.float64)
            ratio = torch.exp(1e-3 * GROWTH[growth](step) * (part + 0.3) / 2 * z)
            clipped += float((((ratio > 1 + clip.e_high) & (A > 0)) | ((ratio < 1 - clip.e_low) & (A < 0))).sum())
            taught += int(teaches.sum())
            clip.observe(ratio, A)
        if step >= 5 and taught:
            yield clipped / taught, clipped / (groups * generations), clip.e_low
        clip.update_range(torch.ones(n))


def main() -> None:
    """Prints one line a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=GROUPS, help="of a step, a multiple of 4")
    parser.add_argument("--generations", type=int, default=GENERATIONS, help="completions of a group")
    options = parser.parse_args()
    print("| groups that teach | ratios | clipped, of tokens with an advantage (5 % to 95 % of steps) | of all |")
    print("|---|---|---|---|")
    for teaching in (0.05, 0.3, 1.0):
        for growth in GROWTH:
            sizes = options.groups, options.generations
            rows = torch.tensor([row for seed in range(SEEDS) for row in shares(teaching, growth, seed, *sizes)])
            low, high = rows[:, 0].quantile(torch.tensor([0.05, 0.95])).tolist()
            mean, of_all, _ = rows.mean(0).tolist()
            print(f"| {teaching:.0%} | {growth} | {mean:.3f} ({low:.2f} to {high:.2f}) | {of_all:.3f} |", flush=True)


if __name__ == "__main__":
    main()
