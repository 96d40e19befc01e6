"""Does the sequence ratio help on a pretrained model, where ratios matter? SmolLM2-135M-Instruct on sums of two steps.

    python lab/studies/real.py            # goes on with whatever is missing; Ctrl-C keeps what is done
    python lab/studies/real.py --verdict  # only prints the tables of what is done

What is done is kept in results/real_*.tar.xz. PLAN was committed before the first run that it judges.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from evidence import unpack
from laws import markdown
from strong_told import holm, p_value, reach

from gspo.compare.cells import finished
from gspo.compare.compare import compare
from gspo.compare.spec import Cell, read
from gspo.demo import smollm2
from gspo.statistics.intervals import interval, paired
from gspo.statistics.verdicts import spell

PLAN = """
Written before any run that is judged. SmolLM2-135M-Instruct, after a cold start on 256 worked answers (16 updates of 16),
answers sums of two steps in words; the reward is 1 for the right number in the form that was shown. A step is 4 prompts x 8
completions of at most 48 tokens at temperature 1; 4 mini-batches x 4 epochs make 16 updates of it; 25 steps; AdamW, constant
rate, no KL.
Arms: GSPO 3e-3/4e-3, GRPO .2/.27, and no ratio at all (reinforce).
Manipulation check, on seed 900 and the arm without ratio: after the last update of a batch the standard deviation of the
log-ratios of all tokens is at least .1, and the k3 estimate of KL(pi_old || pi) at least 3e-3 nats a token, both as means
over steps 2 to 6. The lowest rate of 5e-7, 1e-6, 2e-6, 4e-6 that passes is the lowest of the sweep. If none does, the study
stops and says so.
Sweep: three rates an arm, each twice the last, seeds 0 and 1. An arm takes the rate whose worse seed has the higher mean
reward over all steps, on a tie the lower rate. While the highest rate is taken, twice that rate is added, up to five rates.
The lowest rate may be taken: below it ratios do not matter, so it is outside the question.
Study: seeds 10 to 17, paired by prompts, their order and the start. Primary: the mean reward over all 25 steps. Compared:
GSPO - GRPO, GSPO - no ratio, GRPO - no ratio, by Student's t, Holm over the three. The margin is .03: arms are alike if the
95 % interval lies within it. Secondary, not corrected: accuracy on 200 held-out questions at the end; runs that broke down
(mean reward of the last 5 steps below half of the best 5 in a row), by exact McNemar; clipped tokens; the drift as in the
manipulation check. The power for .03 is computed from the sweep's spread before the study's first run, and printed with it.
Amended on 2026-11-29 after a first pilot and before any other run: that pilot began at 1e-5, and at 1e-5 and 2e-5 the arm
without ratio fell from .75 to 0 within its first batch (KL .46 and .95 nats a token), so no rate of it was near the check;
and at temperature .7 14 of 40 groups had equal rewards, at 1 only 9. Rates and temperature were changed, nothing else.
"""
HERE = Path(__file__).resolve().parent
RESULTS, START = HERE / "results", Path("runs/real/start")
ARMS = {
    "GSPO": {"name": "gspo", "epsilon": 3e-3, "epsilon_high": 4e-3},
    "GRPO": {"name": "grpo", "epsilon": 0.2, "epsilon_high": 0.27},
    "no ratio": {"name": "reinforce"},
}
RATES, MOST_RATES = (5e-7, 1e-6, 2e-6, 4e-6), 5
LEAST_SPREAD, LEAST_KL = 0.1, 3e-3
MARGIN = 0.03
PAIRS = (("GSPO", "GRPO"), ("GSPO", "no ratio"), ("GRPO", "no ratio"))
SEEDS = {"real_pilot": ("900",), "real_sweep": ("[01]",), "real_study": ("1[01]", "1[23]", "1[45]", "1[67]")}
Drift = list[tuple[float, float]]


def study_file(name: str, rates: dict[str, list[float]], seeds: list[int], steps: int = 25) -> Path:
    """Writes the study: each arm at its rates. A variant is called by its arm and its rate."""
    lines = ['title = "The sequence ratio on SmolLM2-135M"', 'base = "real_base.toml"', f"seeds = {seeds}"]
    first, (lowest_rate, *_) = next(iter(rates.items()))
    lines += ['plan = "PLAN of real.py"', f'baseline = "{variant(first, lowest_rate)}"', "last = 5"]
    lines += ["workers = 2", "threads = 1"]
    for arm, each in rates.items():
        for rate in each:
            own = ", ".join(f"{key} = {json.dumps(value)}" for key, value in ARMS[arm].items())
            lines += ["", f'[variants."{variant(arm, rate)}"]', f"algorithm = {{{own}}}", f"optimizer = {{lr = {rate:g}}}"]
            lines += [f"train = {{steps = {steps}}}"] if steps != 25 else []
    path = HERE / f"{name}.toml"
    path.write_text("\n".join(["# Written by real.py.", "", *lines]) + "\n", encoding="utf-8")
    return path


def variant(arm: str, rate: float) -> str:
    """The name of an arm at a rate."""
    return f"{arm} lr {rate:g}"


def cells_of(name: str) -> list[Cell]:
    """All runs of a study."""
    return read(HERE / f"{name}.toml", RESULTS / name).cells


def run(name: str) -> None:
    """Runs what is missing, a group of seeds at a time, and keeps it. Raises RuntimeError if a run failed."""
    folder = RESULTS / name
    unpack(folder)
    for seeds in SEEDS[name]:
        try:
            status = compare(HERE / f"{name}.toml", folder, only=f"*/seed{seeds}")
        finally:
            pack(name)
        if status:
            raise RuntimeError(f"{name}: a run failed; see {folder}")


def pack(name: str) -> None:
    """Keeps configuration, metrics and drift of the finished runs, and deletes their weights."""
    folder = RESULTS / name
    with tarfile.open(folder.with_suffix(".tar.xz"), "w:xz") as file:
        for cell in filter(finished, cells_of(name)):
            place = Path(cell.config.log.dir)
            if not (place / "drift.json").exists():
                (place / "drift.json").write_text(json.dumps(drift_of(place / "rollouts.jsonl")), encoding="utf-8")
            settings = place / "config.toml"
            settings.write_text(settings.read_text(encoding="utf-8").replace(f"{HERE.parents[1]}/", ""), encoding="utf-8")
            for part in ("config.toml", "metrics.jsonl", "drift.json"):
                file.add(place / part, (place / part).relative_to(folder))
            for part in ("checkpoints", "model"):
                shutil.rmtree(place / part, ignore_errors=True)


def drift_of(rollouts: Path) -> Drift:
    """Of each step, after its last update: spread of the tokens' log-ratios, and the k3 estimate of KL(pi_old || pi)."""
    steps: dict[int, list[float]] = {}
    for line in rollouts.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        steps.setdefault(row["step"], []).extend(value for value in row.get("log_ratio") or [] if value is not None)
    found = [np.asarray(steps[step]) for step in sorted(steps)]
    return [(float(x.std(ddof=1)), float((np.expm1(x) - x).mean())) for x in found if len(x) > 1]


def of_cells(name: str) -> list[dict[str, Any]]:
    """What is said of each finished run."""
    found = []
    for cell in filter(finished, cells_of(name)):
        place = Path(cell.config.log.dir)
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        rewards = [line["reward"] for line in lines if line.get("reward") is not None]
        drift = np.asarray(json.loads((place / "drift.json").read_text(encoding="utf-8")))[1:]
        ends = np.convolve(rewards, np.ones(5) / 5, "valid")
        arm, _, rate = cell.variant.partition(" lr ")
        found.append({
            "arm": arm, "rate": float(rate), "seed": cell.seed, "mean": float(np.mean(rewards)),
            "accuracy": next((line["eval/accuracy"] for line in reversed(lines) if "eval/accuracy" in line), float("nan")),
            "broke": bool(ends[-1] < ends.max() / 2), "spread": drift[:5, 0].mean(), "kl": drift[:5, 1].mean(),
            "clipped": float(np.mean([line["clip_ratio/tokens"] for line in lines if "clip_ratio/tokens" in line])),
        })  # fmt: skip
    return found


def lowest(pilot: list[dict[str, Any]]) -> float | None:
    """The lowest rate that passes the manipulation check; None if none does."""
    passed = [run["rate"] for run in pilot if run["spread"] >= LEAST_SPREAD and run["kl"] >= LEAST_KL]
    return min(passed, default=None)


def choose(sweep: list[dict[str, Any]], arm: str) -> float:
    """The rate whose worse seed is best; on a tie the lower."""
    worst: dict[float, float] = {}
    for run in sweep:
        if run["arm"] == arm:
            worst[run["rate"]] = min(worst.get(run["rate"], np.inf), run["mean"])
    return max(sorted(worst), key=worst.__getitem__)


def mcnemar(one: list[bool], other: list[bool]) -> float:
    """The exact two-sided p value of paired outcomes."""
    first, second = (sum(a and not b for a, b in pair) for pair in (zip(one, other), zip(other, one)))
    n, k = first + second, min(first, second)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n) if n else 1.0


def power(sweep: list[dict[str, Any]], rates: dict[str, float]) -> str:
    """The difference that the study's seeds find in 80 of 100 studies, from the sweep's spread, as if unpaired: at the
    chosen rates, as planned, and at all rates. Those chosen spread least, since the choice is by the worse seed.
    """
    means: dict[tuple[str, float], list[float]] = {}
    for run in sweep:
        means.setdefault((run["arm"], run["rate"]), []).append(run["mean"])
    variances = {choice: float(np.var(values, ddof=1)) for choice, values in means.items()}
    seeds = 2 * len(SEEDS["real_study"])
    chosen, all_rates = (
        reach(seeds, 0.05) * math.sqrt(2 * np.mean(each))
        for each in ([variances[choice] for choice in rates.items()], [*variances.values()])
    )
    return (
        f"{seeds} seeds find a difference of {chosen:.3f} in 80 of 100 studies (margin {MARGIN}); "
        f"by the spread at all rates, {all_rates:.3f}"
    )


def table(name: str) -> str:
    """Each arm at each rate, in means over its seeds."""
    rows = [["", "n", "all steps", "held out", "broke down", "clipped tokens", "spread of log-ratios", "KL, nats a token"]]
    done = of_cells(name)
    for arm, rate in dict.fromkeys((run["arm"], run["rate"]) for run in done):
        here = [run for run in done if (run["arm"], run["rate"]) == (arm, rate)]
        rows.append([
            variant(arm, rate), str(len(here)),
            *(spell(interval([run[key] for run in here], (0, 1))) for key in ("mean", "accuracy")),
            str(sum(run["broke"] for run in here)), f"{np.mean([run['clipped'] for run in here]):.2%}",
            *(f"{np.mean([run[key] for run in here]):.2g}" for key in ("spread", "kl")),
        ])  # fmt: skip
    return markdown(rows)


def differences(done: list[dict[str, Any]], one: str, other: str, key: str) -> list[float]:
    """One arm minus the other, for each seed that both have."""
    return paired(*({run["seed"]: run[key] for run in done if run["arm"] == arm} for arm in (one, other)))


def verdicts(done: list[dict[str, Any]]) -> str:
    """The planned comparisons: difference, interval, Holm's p value, what they allow to say."""
    rows = [["", "n", "all steps", "p, Holm", "verdict", "held out", "broke down in", "p, McNemar"]]
    of_arm = {arm: {run["seed"]: run for run in done if run["arm"] == arm} for arm in ARMS}
    values = [differences(done, one, other, "mean") for one, other in PAIRS]
    for (one, other), means, p in zip(PAIRS, values, holm([p_value(each) for each in values]), strict=True):
        found, seeds = interval(means), sorted(of_arm[one].keys() & of_arm[other].keys())
        verdict = "higher" if found.mean > 0 else "lower"
        alike = max(-found.low, found.high) < MARGIN
        broke = [[of_arm[arm][seed]["broke"] for seed in seeds] for arm in (one, other)]
        rows.append([
            f"{one} - {other}", str(found.n), spell(found, "+z.3f"), f"{p:.3f}",
            f"alike within {MARGIN}" if alike else verdict if p < 0.05 else "not resolved",
            spell(interval(differences(done, one, other, "accuracy")), "+z.3f"), f"{sum(broke[0])}, {sum(broke[1])}",
            f"{mcnemar(*broke):.2f}",
        ])  # fmt: skip
    return markdown(rows)


def prepare() -> None:
    """The model after its cold start, on one thread, as the runs have it."""
    smollm2.fetch_smollm2(print)
    if not (START / "model").exists():
        words = ["-m", "gspo", "sft", "recipe:smollm2-arithmetic-cold-start", "--log.dir", str(START.absolute())]
        subprocess.run([sys.executable, *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def at_root() -> None:
    """Works in the root of the repository, where runs of this process and its children find the study's task."""
    root = HERE.parents[1]
    os.chdir(root)
    sys.path.append(str(root))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(root))))


def main() -> int:
    """Goes on with whatever is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--verdict", action="store_true", help="only print the tables of what is done")
    options = parser.parse_args()
    at_root()
    if options.verdict:
        for name in ("real_pilot", "real_sweep", "real_study"):
            if (HERE / f"{name}.toml").exists():
                unpack(RESULTS / name)
                print(f"{name}\n\n{table(name)}")
        if (HERE / "real_study.toml").exists():
            sweep = of_cells("real_sweep")
            print(power(sweep, {arm: choose(sweep, arm) for arm in ARMS}))
        print(verdicts(of_cells("real_study")) if (HERE / "real_study.toml").exists() else "no judged run is done")
        return 0
    prepare()
    study_file("real_pilot", {"no ratio": list(RATES)}, [900], steps=6)
    run("real_pilot")
    print(table("real_pilot"))
    low = lowest(of_cells("real_pilot"))
    if low is None:
        print(f"no rate up to {RATES[-1]:g} passes the manipulation check: the study stops here")
        return 1
    rates = {arm: [low, 2 * low, 4 * low] for arm in ARMS}
    while True:
        study_file("real_sweep", rates, [0, 1])
        run("real_sweep")
        chosen = {arm: choose(of_cells("real_sweep"), arm) for arm in ARMS}
        open_ends = [arm for arm in ARMS if chosen[arm] == rates[arm][-1] and len(rates[arm]) < MOST_RATES]
        if not open_ends:
            break
        for arm in open_ends:
            rates[arm].append(2 * rates[arm][-1])
    print(table("real_sweep"))
    print(power(of_cells("real_sweep"), chosen), flush=True)
    study_file("real_study", {arm: [rate] for arm, rate in chosen.items()}, list(range(10, 18)))
    run("real_study")
    print(table("real_study"))
    print(verdicts(of_cells("real_study")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
