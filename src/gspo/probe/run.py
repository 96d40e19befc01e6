"""`gspo probe`: the command, from the configuration to the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gspo.build.assemble import training
from gspo.build.given import Given
from gspo.config.checks import check_training
from gspo.config.files import to_dict
from gspo.config.schema import Config
from gspo.learner.algorithm import resolved
from gspo.probe import page
from gspo.probe.advice import Advice, advise
from gspo.probe.measure import Measured, ProbePlan, measure
from gspo.probe.source import FILE, depends_on
from gspo.probe.walk import probed
from gspo.runs.log import finite
from gspo.safe import own_folder, replace_file


@dataclass(frozen=True)
class ProbeOptions:
    """The words of `gspo probe`. ages: () for those that suit the run. warm: steps of training before it begins."""

    dir: Path
    groups: int = 32
    fresh: int = 64
    ages: tuple[int, ...] = ()
    warm: int = 2


def plan_of(config: Config, options: ProbeOptions) -> ProbePlan:
    """What is measured."""
    updates = (config.algorithm.mini_batches or 1) * config.algorithm.epochs
    ages, teaching = options.ages or ages_of(updates), config.rollout.refill > 0
    return ProbePlan(options.groups, options.fresh, ages, updates, options.warm, teaching)


def ages_of(updates: int) -> tuple[int, ...]:
    """0, powers of 2, the last age that the run trains at, and twice that."""
    powers = [2**i for i in range(updates.bit_length()) if 2**i < updates]
    return tuple(sorted({0, *powers, updates - 1, max(2, 2 * (updates - 1))}))


def probe(config: Config, options: ProbeOptions, given: Given | None = None) -> tuple[Path, list[str]]:
    """Measures, and writes probe.json, measured.npz and probe.html into the folder. Returns the page's path, and what it
    says first. After Ctrl-C the page says what was measured until then, and KeyboardInterrupt goes on.
    """
    check_training(config)
    depends = depends_on(to_dict(config))
    config, _ = resolved(config)
    plan = plan_of(config, options)
    if options.dir.exists() and (options.dir.is_file() or any(options.dir.iterdir())):
        raise ValueError(f"--dir {options.dir}: exists already; give another")
    told: tuple[Measured, Advice] | None = None
    words: list[str] = []
    try:
        with training(probed(config, options.dir / "run"), given=given) as (run, _):
            for found in measure(run, plan):
                told = found, write(config, plan, found, depends, options.dir)  # kept where the next age fails
    finally:
        if told is not None:
            page.write(config, plan, *told, options.dir)
            words = [page.headline(told[1]), *told[1].reasons, *told[0].notes]
    return options.dir / page.NAME, words


def write(config: Config, plan: ProbePlan, found: Measured, depends: Mapping[str, Any], folder: Path) -> Advice:
    """probe.json and measured.npz. depends: settings that its advice depends on."""
    groups = config.rollout.num_prompts / (config.algorithm.mini_batches or 1)
    advice = advise(found, plan.updates, groups)
    told: dict[str, Any] = {
        "recommended": None if advice.candidate is None else page.settings(advice.candidate),
        "name": None if advice.candidate is None else advice.candidate.name,
        "reasons": advice.reasons,
        "notes": found.notes,
        "depends": dict(depends),
        "plan": asdict(plan),
        "groups_in_an_update": groups,
        "groups_that_teach": found.groups,
        "mean_length": found.mean_length,
        "reward": found.reward,
        "floor": found.floor,
        "lines": [line_of(line) for line in advice.lines],
        "ages": [
            {
                "age": age.age,
                "ratios": age.ratios,
                "lengths": age.lengths,
                "law": age.law,
                "volatility": age.volatility,
                "agreement": age.agreement,
                "clipped": age.clipped,
            }
            for age in found.ages
        ],
        "clip": found.clip,
    }
    replace_file(own_folder(folder) / FILE, f"{json.dumps(finite(told), indent=1)}\n".encode())
    arrays = {
        f"{age.age}/{name}/{part}": getattr(products, part).astype(np.float32)
        for age in found.ages
        for name, products in age.products.items()
        for part in ("own", "cross", "truth")
    }
    np.savez_compressed(folder / "measured.npz", **arrays)
    return advice


def line_of(line: Any) -> dict[str, Any]:
    """A line of the advice in plain types."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in line._asdict().items()}
