"""Training where the mechanism is strong: many updates a batch, a coarse sampler, no bound on the gradient.

    python lab/studies/strong.py            # all that is missing, two cells at a time
    python lab/studies/strong.py --hours 2  # starts no cell that would end later
    python lab/studies/strong.py --list     # the cells, what they cost, and which are done

Ctrl-C as in mechanism.py. Each cell is a small JSON, kept in results/strong.tar.xz.

The plan, written before any run that it judges
===============================================

The task and the models are those of mechanism.py (world.py): a mixture of 4 layers with 4 of 32 experts, or a dense control.
A run has 20 steps of 16 prompts x 4 completions of 64 tokens, in 2 epochs of 8 mini-batches: 16 updates a batch.

It is the second plan. The first judged the last 5 steps; chose among 4 rates and 3 ranges (12 rates where there is no range)
by 2 seeds; and gave centring the choice of what it was added to. 7 choices were at an end, so it judged nothing, as it had
said; and most runs had ended at the highest reward there is. Its runs of seeds 0 to 6 are in lab/log.md. Hence what is new:
the outcome, wider sweeps with a third seed, sweeps of centring's own, other seeds. What the first sweep measured is part of
the wider one.

Settings, each by what differs: mixture; dense; int4 and fp8, mixtures whose sampler has coarse weights; unbounded, the
mixture without gradient clipping; unbounded dense; hot, the mixture with 3 times each variant's learning rate; hot dense.
The last four look where tuning did not: what a sweep has chosen is stable by choice.

Primary outcome: mean reward of all steps; a run that ends with an error has lost, and counts as -1. Beside it: the mean of
the last 5 steps, the share of runs that collapse by the guard's test, log10 of the largest gradient norm of an update over
the median one, and evenness, the standard deviation over seeds. Differences are paired by seed, with Student's t.

Sweep, on mixture and dense: each variant but those with replay has 30 choices, 6 learning rates with 5 clip ranges, or 30
rates where there is no range to choose. The widest range is none at all, or all up to the dual clip. The choice is the one
with the best mean of the primary outcome over seeds 100 to 102; the other settings take that of their model, so there
verdicts are on choices tuned elsewhere. Replay takes the choice of the variant that it is added to: they differ in nothing
else. Where a choice is the tightest range, or at an end of the rates, a star says so, and a claim with such a variant is
shown and not judged. Intervals over the seeds that are judged, 8 to 15, hold for these choices.

Claims. The primary test of each is of its mean over the settings named, one value a seed; Holm over all of them at 5 %. Each
setting alone is shown, and described, not judged.

    1. gspo - grpo, everywhere
    2. gspo - grpo_dual, everywhere: what is left where GRPO's term for A < 0 has a bound
    3. grpo_dual - grpo, everywhere
    4. grpo R2 - grpo, on mixtures: replay steadies GRPO
    5. gspo R2 - gspo, on mixtures: GSPO needs no replay (equal)
    6. gspo auto - gspo, everywhere: a range that sets itself is as good as the best of a sweep (equal)
    7. gspo - no ratio, hot and unbounded: something must bound the update
    8. (gspo - grpo) of mixture, unbounded and hot - the same of their dense controls: it is the mixture that GSPO helps

A claim is resolved where its interval at the corrected level leaves 0 out; two variants are equal where that interval lies
within .02. Where neither holds, the smallest difference that as many seeds find in 80 of 100 studies, at the first corrected
level, is told. The paper's claim that more compute goes on paying is not tested here.

Centring. A sequence clip is offset by whatever shifts all log s alike. `centred` divides s by exp of the mean of log s over
the mini-batch's completions with an advantage, a constant of the update, before the clip: of gspo and of gspo auto. Rule: it
is kept, as an option, where the mean over all settings but int4 (mixtures and dense models with equal weight) of the
difference to the same variant without it has a 97.5 % interval above 0 (two forms are tried; one value a seed). It has lost
where that lies below 0; else it is not resolved, and is not kept. int4 is shown and not counted: the lead was found with
such a sampler.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import world
from cells import HERE, Study, go_on, parser

SWEEP_SEEDS, SEEDS = (100, 101, 102), range(8, 16)
STEPS, LAST = 20, 5
PROMPTS = 512
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
ALONE = tuple(float(f"{1e-4 * 10 ** (i * 1.25 / 11):.2g}") for i in range(30))  # rates where there is no range
BATCH = {"num_prompts": 16, "num_generations": 4}
ALGORITHM = {"mini_batches": 8, "epochs": 2, "old_logprobs": "sampler"}
COLD_START = 300  # updates
START, COST = 45.0, 7.0  # seconds of a core for a cold start, and for a run
NONE = 1000.0  # a bound that no ratio reaches


def fixed(name: str, *ranges: float) -> list[dict[str, Any]]:
    """An algorithm with ranges of the paper's shape, a third wider above, and last with none."""
    made = [{"name": name, "epsilon": low, "epsilon_high": float(f"{low * 4 / 3:.3g}")} for low in ranges]
    return [*made, {"name": name, "epsilon": 1.0, "epsilon_high": NONE}]


TOKEN, SEQUENCE = (0.03, 0.1, 0.3, 0.9), (2e-3, 1e-2, 5e-2, 0.2)
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "grpo": fixed("grpo", *TOKEN),
    "grpo_dual": fixed("grpo_dual", *TOKEN),
    "gspo": fixed("gspo", *SEQUENCE),
    "gspo auto": [{"name": "gspo", "epsilon": "auto"}],
    "cispo": [{"name": "cispo", "constants": {"w_max": most}} for most in (1.2, 2.0, 5.0, 20.0, NONE)],
    "no ratio": [{"name": "reinforce"}],
    "gspo centred": fixed("gspo_centred", *SEQUENCE),
    "gspo auto centred": [{"name": "gspo_centred", "epsilon": "auto"}],
}
VARIANTS["grpo"][3]["epsilon_high"] = 2.7
VARIANTS["grpo_dual"][4]["epsilon_high"] = 1.9  # the dual clip, at 3, must lie beyond it
FIRST = 4, slice(1, 4), slice(0, 24, 2)  # rates, ranges, and rates alone, of the sweep that was too narrow
ADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo R2": ("grpo", {"router_replay": "R2"}),
    "gspo R2": ("gspo", {"router_replay": "R2"}),
}
"""What is added to the choice of another variant."""
Sections = dict[str, dict[str, Any]]
SETTINGS: dict[str, Sections] = {
    "mixture": {},
    "dense": {},
    "int4": {"sampler": {"quantize": "int4"}},
    "fp8": {"sampler": {"quantize": "fp8"}},
    "unbounded": {"optimizer": {"max_grad_norm": 1e12}},
    "unbounded dense": {"optimizer": {"max_grad_norm": 1e12}},
    "hot": {},
    "hot dense": {},
}
HOT = 3.0  # times the learning rate
RUN: Sections = {
    "rollout": BATCH | {"max_completion_length": 64}, "algorithm": ALGORITHM, "train": {"steps": STEPS, "save_every": 10**6},
    "eval": {"num_prompts": 0}, "guard": {"action": "off"},
}  # fmt: skip


def model_of(setting: str) -> str:
    """The setting whose model and choices it has."""
    return "dense" if "dense" in setting else "mixture"


def variants(setting: str) -> list[str]:
    """Those that make sense there."""
    return [name for name in (*VARIANTS, *ADDED) if not ("R2" in name and model_of(setting) == "dense")]


def choices(variant: str) -> list[Sections]:
    """The 30 of the sweep: those of the first one, then the others."""
    first, others = parts(variant)
    return first + others


def parts(variant: str) -> tuple[list[Sections], list[Sections]]:
    """The 12 choices of the first sweep, and those that widen it."""
    own, (rates, ranges, alone) = VARIANTS[variant], FIRST
    known = (RATES[:rates], own[ranges]) if len(own) > 1 else (ALONE[alone], own)
    every = (RATES, own) if len(own) > 1 else (ALONE, own)
    first, wide = (
        [{"optimizer": {"lr": rate}, "algorithm": each} for rate, each in itertools.product(*side)]
        for side in (known, every)
    )
    return first, [each for each in wide if each not in first]


def merged(*tables: Mapping[str, Mapping[str, Any]]) -> Sections:
    """Sections, the later over the earlier."""
    made: Sections = {}
    for table in tables:
        for section, values in table.items():
            made[section] = made.get(section, {}) | dict(values)
    return made


@dataclass(frozen=True)
class RunsCell:
    """Runs on one cold start: a part of a variant's choices, or in a setting each variant with its choice. chosen: these
    choices, as JSON.
    """

    setting: str
    seed: int
    variant: str = ""
    part: int = 0
    chosen: str = ""

    @property
    def name(self) -> str:
        """Of its file."""
        wider = "_wider" if self.part else ""
        return f"{'sweep' if self.variant else 'run'}_{self.setting}_{self.variant}{wider}_seed-{self.seed}".replace(
            " ", "-"
        )

    @property
    def runs(self) -> list[tuple[str, Sections]]:
        """Each run's variant and sections."""
        if self.variant:
            return [(self.variant, each) for each in parts(self.variant)[self.part]]
        return list(json.loads(self.chosen).items())

    @property
    def settings(self) -> dict[str, Any]:
        """All that its result depends on, as JSON has it."""
        own = {"setting": self.setting, "seed": self.seed, "variant": self.variant, "runs": [list(run) for run in self.runs]}
        sizes = {"prompts": PROMPTS, "last": LAST, "cold_start": COLD_START, "run": RUN, "hot": HOT}
        return own | sizes | {"sections": SETTINGS[self.setting], "world": world.settings()}

    @property
    def cost(self) -> float:
        """Seconds of one core, about."""
        return START + len(self.runs) * COST


def sweep() -> list[RunsCell]:
    """Cells that find each variant's choice."""
    return [
        RunsCell(model, seed, name, part)
        for seed in SWEEP_SEEDS
        for model in ("mixture", "dense")
        for name in VARIANTS
        for part in (0, 1)
    ]


def swept(results: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, list[float]]]:
    """Of each model and variant: each choice, as JSON, and the primary outcome of each seed; {} where it has not ended."""
    by_settings = {json.dumps(each["settings"], sort_keys=True): each["runs"] for each in results}
    made: dict[tuple[str, str], dict[str, list[float]]] = {}
    for cell in sweep():
        if (found := by_settings.get(json.dumps(cell.settings, sort_keys=True))) is None:
            return {}
        own = made.setdefault((cell.setting, cell.variant), {})
        for (_, each), run in zip(cell.runs, found):
            own.setdefault(json.dumps(each), []).append(run["mean"])
    return made


def chosen(results: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Sections]]:
    """Of each model and variant the choice of the sweep; {} where it has not ended."""
    made: dict[str, dict[str, Sections]] = {}
    for (model, variant), own in swept(results).items():
        made.setdefault(model, {})[variant] = json.loads(max(own, key=lambda choice: sum(own[choice])))
    for known in made.values():
        known |= {name: merged(known[plain], {"algorithm": added}) for name, (plain, added) in ADDED.items()}
    return made


def judged(setting: str, told: Mapping[str, Mapping[str, Sections]]) -> dict[str, Sections]:
    """Each variant's choice in a setting."""
    own = {name: merged(told[model_of(setting)][name]) for name in variants(setting)}
    for sections in own.values() if setting.startswith("hot") else ():
        sections["optimizer"]["lr"] *= HOT
    return own


def cells(results: Iterable[Mapping[str, Any]]) -> list[RunsCell]:
    """The sweep, and where it has ended the runs that are judged, all of a seed before the next."""
    told = chosen(results)
    return sweep() + [
        RunsCell(setting, seed, chosen=json.dumps(judged(setting, told)))
        for seed in (SEEDS if told else ())
        for setting in SETTINGS
    ]


STUDY = Study("strong", "strong_cell.py", cells)


def main() -> int:
    """Goes on with whatever is missing: the sweep, then the runs."""
    options = parser(__doc__).parse_args()
    os.chdir(HERE.parents[1])
    STUDY.unpack()
    first, begun = STUDY.cells(), time.monotonic()
    status = go_on(STUDY, first, options)
    if not status and not options.list and len(every := STUDY.cells()) > len(first):
        options.hours -= (time.monotonic() - begun) / 3600
        status = go_on(STUDY, every, options)
    if not options.list:
        subprocess.run([sys.executable, HERE / "report.py", "--tables"], check=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
