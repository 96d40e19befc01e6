"""How often does the guard find a fall of the reward where there is none, and how soon where there is one?

python lab/speed/guard.py [--runs 200] [--processes 2]

Each run has steps of 32 prompts with 8 completions from 512 prompts of unequal difficulty, shuffled anew in each pass. The
policy of the first table never changes. That of the second learns, or breaks at step 300 within 10 steps. The third reads
the committed runs of the studies.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gspo.config.training import GuardConfig
from gspo.rollout.metrics import reward_noise
from gspo.training.guard import Guard

STEPS, POOL, PROMPTS, GENERATIONS, BREAK = 1000, 512, 32, 8, 300
RESULTS = Path(__file__).parents[1] / "studies/results"
Rng = np.random.Generator
Draw = Callable[[np.ndarray, float, Rng], np.ndarray]


def passes(mean: float) -> Callable[[Rng], np.ndarray]:
    """Success rates of prompts, very unequal: many near 0, some near 1."""
    return lambda rng: rng.beta(mean, 1 - mean, POOL)


def levels(spread: float) -> Callable[[Rng], np.ndarray]:
    """Mean rewards of prompts around 0."""
    return lambda rng: rng.normal(0, spread, POOL)


def right(difficulty: np.ndarray, policy: float, rng: Rng) -> np.ndarray:
    """Rewards 0 and 1. policy: factor of each prompt's rate."""
    return (rng.random((len(difficulty), GENERATIONS)) < difficulty[:, None] * policy).astype(float)


def plus_minus(difficulty: np.ndarray, policy: float, rng: Rng) -> np.ndarray:
    """Rewards -1 and 1."""
    return 2 * right(difficulty, policy, rng) - 1


def normal(difficulty: np.ndarray, policy: float, rng: Rng) -> np.ndarray:
    """Normal rewards. policy: their mean."""
    return rng.normal(policy + difficulty[:, None], 0.7, (len(difficulty), GENERATIONS))


def steady(value: float) -> Callable[[int], float]:
    """A policy that stays what it is."""
    return lambda step: value


def broken(before: float, after: float) -> Callable[[int], float]:
    """A policy that goes from one value to the other in the 10 steps from BREAK on."""
    return lambda step: before + (after - before) * min(1.0, max(0.0, (step - BREAK) / 10))


def learned(before: float, after: float) -> Callable[[int], float]:
    """A policy that improves all the time."""
    return lambda step: before + (after - before) * step / STEPS


CONSTANT: dict[str, tuple[Any, Draw, Callable[[int], float]]] = {
    "0/1, 1 % right": (passes(0.01), right, steady(1.0)),
    "0/1, 5 % right": (passes(0.05), right, steady(1.0)),
    "0/1, 50 % right": (passes(0.5), right, steady(1.0)),
    "N(0.1, 1)": (levels(0.7), normal, steady(0.1)),
    "N(0, 1)": (levels(0.7), normal, steady(0.0)),
    "-1/1, 50 % right": (passes(0.5), plus_minus, steady(1.0)),
    "learns from N(-1, 1) to N(0.5, 1)": (levels(0.7), normal, learned(-1.0, 0.5)),
    "learns from 5 % to 50 % right": (passes(0.5), right, learned(0.1, 1.0)),
}
BROKEN: dict[str, tuple[Any, Draw, Callable[[int], float]]] = {
    "0/1, 1 % right, then 0": (passes(0.01), right, broken(1.0, 0.0)),
    "0/1, 5 % right, then 0": (passes(0.05), right, broken(1.0, 0.0)),
    "0/1, 50 % right, then 5 %": (passes(0.5), right, broken(1.0, 0.1)),
    "N(-0.1, 1), then N(-1, 1)": (levels(0.7), normal, broken(-0.1, -1.0)),
    "N(0.1, 1), then N(-1, 1)": (levels(0.7), normal, broken(0.1, -1.0)),
    "-1/1, 50 % right, then 0": (passes(0.5), plus_minus, broken(1.0, 0.0)),
}


def steps(case: tuple[Any, Draw, Callable[[int], float]], seed: int) -> Iterator[dict[str, float]]:
    """The metrics of a run's steps."""
    difficulties, draw, policy = case
    rng = np.random.default_rng(seed)
    difficulty, order = difficulties(rng), np.zeros(0, int)
    for step in range(1, STEPS + 1):
        if len(order) < PROMPTS:
            order = rng.permutation(POOL)
        taken, order = order[:PROMPTS], order[PROMPTS:]
        rewards = draw(difficulty[taken], policy(step), rng)
        yield {"step": step, "reward": float(rewards.mean())} | reward_noise(rewards.tolist())


def first_calls(lines: Iterator[dict[str, Any]]) -> tuple[int, int, int]:
    """The first steps with a warning, an alarm and a collapse, 0 where there is none."""
    guard, found = Guard(GuardConfig()), [0, 0, 0]
    for line in lines:
        verdict = guard.observe(line)
        level = verdict.metrics["guard/level"]
        for i, called in enumerate((level > 0, level > 1, verdict.collapsed)):
            if called and not found[i]:
                found[i] = int(line["step"])
    return found[0], found[1], found[2]


def simulated(name: str, seed: int) -> tuple[int, int, int]:
    """first_calls of a run of CONSTANT or BROKEN."""
    return first_calls(steps((CONSTANT | BROKEN)[name], seed))


def committed(name: str) -> Iterator[list[dict[str, Any]]]:
    """The metrics of each run of a study that is kept in lab/studies/results."""
    with tarfile.open(RESULTS / f"{name}.tar.xz") as archive:
        for member in archive:
            if member.name.endswith("metrics.jsonl") and (file := archive.extractfile(member)) is not None:
                yield [{k: v for k, v in json.loads(line).items() if k in ("step", "reward")} for line in file]


def ends_low(lines: list[dict[str, Any]]) -> bool:
    """Whether the mean of the last 5 steps is below half of the best such mean."""
    rewards = [line["reward"] for line in lines if line.get("reward") is not None]
    means = np.convolve(rewards, np.ones(5) / 5, "valid")
    return bool(means[-1] < 0.5 * means.max())


def calls(pool: ProcessPoolExecutor, name: str, runs: int) -> np.ndarray:
    """first_calls of as many runs, [runs, 3]."""
    return np.array(list(pool.map(partial(simulated, name), range(runs), chunksize=4)))


def head(title: str, *columns: str) -> None:
    """Begins a table."""
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")


def spread(steps: np.ndarray) -> str:
    """Median and range."""
    return f"{np.median(steps):.0f} ({steps.min()} to {steps.max()})" if len(steps) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="runs of each row")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.processes) as pool:
        head(f"A policy that does not fall: share of {args.runs} runs of {STEPS} steps", "rewards", "warned", "collapsed")
        for name in CONSTANT:
            found = calls(pool, name, args.runs)
            print(f"| {name} | {(found[:, 0] > 0).mean():.1%} | {(found[:, 2] > 0).mean():.1%} |", flush=True)
        columns = "rewards", "warned before", "collapse found", "steps until a warning", "until the collapse is called"
        head(f"A policy that breaks at step {BREAK}", *columns)
        for name in BROKEN:
            found = calls(pool, name, args.runs)
            early = (found[:, 0] > 0) & (found[:, 0] <= BREAK)
            seen = found[~early & (found[:, 2] > 0)] - BREAK
            shares = f"{early.mean():.1%} | {len(seen) / max(1, (~early).sum()):.1%}"
            print(f"| {name} | {shares} | {spread(seen[:, 0])} | {spread(seen[:, 2])} |", flush=True)
    head(
        "Runs of the studies", "study", "runs", "end below half of their best", "of these called collapsed", "of the others"
    )
    for path in sorted(RESULTS.glob("*.tar.xz")):
        name = path.name.removesuffix(".tar.xz")
        ends = [(ends_low(lines), first_calls(iter(lines))[2] > 0) for lines in committed(name)]
        low, other = [c for e, c in ends if e], [c for e, c in ends if not e]
        print(f"| {name} | {len(ends)} | {len(low)} | {sum(low)} | {sum(other)} |", flush=True)


if __name__ == "__main__":
    main()
