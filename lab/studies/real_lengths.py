"""Which clip range fits which length? GSPO on SmolLM2-135M-Instruct, completions of 16, 64 and 256 tokens.

    python lab/studies/real_lengths.py            # goes on with whatever is missing; Ctrl-C keeps what is done
    python lab/studies/real_lengths.py --verdict  # only prints the tables of what is done

What is done is kept in results/real_lengths.tar.xz. PLAN was committed before the first run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import real
from evidence import unpack
from laws import markdown

from gspo.compare.cells import finished
from gspo.demo import smollm2
from gspo.statistics.intervals import interval, paired
from gspo.statistics.verdicts import spell

PLAN = """
Written before any run. SmolLM2-135M-Instruct writes about a topic, and the reward is the share of words of at most four
letters, so that texts of any length earn it and nearly all are cut at the limit of 16, 64 or 256 tokens. A step is 4 prompts
x 8 completions; 4 mini-batches, one epoch; 15 steps; AdamW at 1e-5, no KL; seeds 0 to 4.
Law: in runs with "auto", range and ratio/std are each the geometric mean over the last 5 steps. The exponent of the range,
and that of the spread, is the slope of its logarithm on that of the mean length, for each seed over the three lengths; then
Student's t over seeds. The start of "auto" is c / sqrt(length): -.5 is kept if it lies within the interval of the range's
exponent, else the mean exponent replaces it; c becomes the geometric mean of range * length^-exponent in either case.
Fixed ranges at 16 and 64 tokens: mean reward of all steps, paired by seed with "auto", Student's t. "auto" replaces tuning
at a length if no fixed range is above it by .01 or more with an interval that leaves 0 out. These ten comparisons are not
corrected. 256 tokens run with "auto" only: a run takes 40 minutes of a core there. FSPO's band is not had.
"""
HERE, NAME, LAST = Path(__file__).resolve().parent, "real_lengths", 5
real.SEEDS[NAME] = ("0", "1", "2", "3", "4")
Run = dict[str, float]


def of_runs() -> dict[tuple[str, str], dict[int, Run]]:
    """Of each setting and variant, by seed: mean reward, mean length, and at the end the range, the spread, the share of
    clipped tokens and the KL from pi_old in nats a token.
    """
    found: dict[tuple[str, str], dict[int, Run]] = {}
    for cell in filter(finished, real.cells_of(NAME)):
        text = (Path(cell.config.log.dir) / "metrics.jsonl").read_text(encoding="utf-8")
        lines = [line for line in map(json.loads, text.splitlines()) if line.get("reward") is not None]

        def late(name: str, lines: list[Run] = lines) -> float:
            return float(np.exp(np.mean(np.log([line[name] for line in lines[-LAST:]]))))

        found.setdefault((cell.setting, cell.variant), {})[cell.seed] = {
            "reward": float(np.mean([line["reward"] for line in lines])),
            "length": float(np.mean([line["completions/mean_length"] for line in lines])),
            "range": late("clip/epsilon"),
            "spread": late("ratio/std"),
            "clipped": float(np.mean([line["clip_ratio/tokens"] for line in lines[-LAST:]])),
            "kl": float(np.mean([line["kl"] for line in lines[-LAST:]])),
        }  # fmt: skip
    return found


def exponents(runs: dict[tuple[str, str], dict[int, Run]], name: str) -> list[float]:
    """The slope of log `name` on log length in the runs with "auto", for each seed that has all three lengths."""
    lengths = [by_seed for (_, variant), by_seed in runs.items() if variant == "auto"]
    seeds = set.intersection(*map(set, lengths)) if len(lengths) == 3 else set()
    points = {
        seed: np.log([(by_seed[seed]["length"], by_seed[seed][name]) for by_seed in lengths]) for seed in sorted(seeds)
    }
    return [float(np.polyfit(*each.T, 1)[0]) for each in points.values()]


def verdicts(runs: dict[tuple[str, str], dict[int, Run]]) -> str:
    """The tables of the plan."""
    rows = [["", "n", "all steps", "- auto", "range at the end", "sd of the ratio", "tokens", "clipped", "KL"]]
    for (setting, variant), by_seed in runs.items():
        auto = runs.get((setting, "auto"), {})
        rewards = [{seed: run["reward"] for seed, run in each.items()} for each in (by_seed, auto)]
        difference = "" if variant == "auto" else spell(interval(paired(*rewards)), "+z.3f")
        means = (
            spell(interval([run[name] for run in by_seed.values()]), "z.2g")
            for name in ("range", "spread", "length", "clipped", "kl")
        )
        reward = spell(interval(list(rewards[0].values()), (0, 1)))
        rows.append([f"{setting}, {variant}", str(len(by_seed)), reward, difference, *means])
    slopes = {name: interval(exponents(runs, name)) for name in ("range", "spread")}
    laws = [f"{name} ~ length^{spell(slope, '+z.2f')}, {slope.n} seeds" for name, slope in slopes.items() if slope.n]
    if exponent := slopes["range"].n and slopes["range"].mean:
        auto = [run for (_, variant), by_seed in runs.items() if variant == "auto" for run in by_seed.values()]
        c = np.exp(np.mean(np.log([run["range"] * run["length"] ** -exponent for run in auto])))
        laws.append(f"range = {c:.3f} length^{exponent:.2f}")
    return "\n\n".join([markdown(rows), *laws])


def main() -> int:
    """Goes on with whatever is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdict", action="store_true", help="only print the tables of what is done")
    options = parser.parse_args()
    real.at_root()
    if options.verdict:
        unpack(real.RESULTS / NAME)
    else:
        smollm2.fetch_smollm2(print)
        real.run(NAME)
    print(verdicts(of_runs()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
