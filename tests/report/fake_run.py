"""Makes a run folder with plausible numbers, as training would have written it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog

CONFIG = """[model]
path = "runs/demo/cold-start"

[algorithm]
name = "{name}"
epsilon = 0.0003
epsilon_high = 0.0004

[reward]
functions = ["task", "tasks:worked"]
weights = [1.0, 0.0]

[train]
steps = {steps}
"""


def make(
    folder: Path, steps: int = 60, seed: int = 0, gain: float = 0.53, warnings: tuple[str, ...] = (), name: str = "gspo"
) -> Path:
    """A run folder of `steps` steps in which accuracy rises by about `gain`."""
    rng = random.Random(seed)
    with RunFolder.create(folder, CONFIG.format(name=name, steps=steps)) as run, RunLog(run, progress=Quiet()) as log:
        log.metrics({"step": 0, **accuracy(0.36, rng)})
        for text in warnings:
            log.warn(text)
        for step in range(1, steps + 1):
            skill = 0.36 + gain * (1 - 2.718 ** (-4 * step / steps))
            log.rollouts(rollouts(step, skill, rng))
            log.metrics(metrics(step, steps, skill, rng))
    return folder


class Quiet:
    """A screen that shows nothing."""

    def step(self, metrics: dict[str, Any]) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def accuracy(mean: float, rng: random.Random) -> dict[str, float]:
    half = 1.96 * (mean * (1 - mean) / 512) ** 0.5
    return {
        "eval/accuracy": mean, "eval/accuracy_low": mean - half, "eval/accuracy_high": mean + half, "eval/prompts": 512.0,
        "eval/failed": 3.0, "eval/reward/worked": mean + 0.1, "time/eval": 1.2,
    }  # fmt: skip


def metrics(step: int, steps: int, skill: float, rng: random.Random) -> dict[str, Any]:
    reward = min(1.0, skill + rng.gauss(0, 0.03))
    row = {
        "step": step,
        "reward": reward,
        "reward_std": (reward * (1 - reward)) ** 0.5,
        "reward_min": 0.0,
        "reward_max": 1.0,
        "frac_reward_zero_std": rng.uniform(0.0, 0.3) + step / steps * 0.4,
        "clip_ratio/tokens": rng.uniform(0.08, 0.14),
        "clip/epsilon": 3e-4,
        "clip/epsilon_high": 4e-4,
        "ratio/mean": 1 + rng.gauss(0, 1e-4),
        "ratio/std": 8e-4 * rng.uniform(0.6, 1.5),
        "ratio/noise_floor": 3e-8 * rng.uniform(0.7, 1.4),
        "entropy": 0.32 - 0.2 * step / steps + rng.gauss(0, 0.01),
        "kl": 2e-5 * rng.uniform(0.5, 2),
        "grad_norm": rng.uniform(0.5, 2.2),
        "lr": 5e-5,
        "completions/mean_length": 45 + 60 * skill,
        "completions/clipped_ratio": rng.uniform(0, 0.03),
        "reward/task": skill,
        "reward/worked": min(1.0, skill + 0.1),
        "tokens": 192 * (45 + 60 * skill),
        "time/sample": rng.uniform(0.28, 0.34),
        "time/score": rng.uniform(0.01, 0.02),
        "time/train": rng.uniform(0.36, 0.45),
        "tokens_per_second": rng.uniform(17000, 21000),
        "rollouts/failed": 0,
    }
    return row | (accuracy(skill, rng) if step % 15 == 0 or step == steps else {})


def rollouts(step: int, skill: float, rng: random.Random, prompts: int = 6, group: int = 4) -> list[dict[str, Any]]:
    rows = []
    for p in range(prompts):
        number = rng.randrange(10000, 99999)
        rewards = [float(rng.random() < skill) for _ in range(group)]
        for g in range(group):
            answer = bin(number).count("1") if rewards[g] else rng.randrange(3, 12)
            if rng.random() < skill + 0.1:
                thought = ["<think>", f"{number} odd 1", "; ", "1 odd ", str(answer), "</think>"]
                pieces = [*thought, "<answer>", str(answer), "</answer>"]
            else:
                pieces = ["I ", "will ", "guess. ", "<answer>", str(answer), "</answer>"]
            rows.append({
                "step": step, "prompt_id": f"{step}-{p}", "group": p, "completion": "".join(pieces), "version": step - 1,
                "prompt": f"How many 1 bits are in the binary representation of the number {number}?", "stop": "eos",
                "token_ids": list(range(len(pieces))), "reward": rewards[g], "reward_parts": {"task": rewards[g]},
                "advantage": rewards[g] - sum(rewards) / group, "error": None,
            })  # fmt: skip
            if p == 0:
                rows[-1]["tokens"] = pieces
                rows[-1]["logp"] = [-abs(rng.gauss(0, 0.4)) for _ in pieces]
                rows[-1]["log_ratio"] = [rng.gauss(0, 0.01) * rng.choice((0.1, 1, 3)) for _ in pieces]
    return rows
