"""`gspo probe`: the command, from the configuration to the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gspo.assembly.assemble import training
from gspo.assembly.call_inputs import Given
from gspo.config.checks import check_training
from gspo.config.files import to_dict
from gspo.config.schema import Config
from gspo.learner.algorithm import resolved
from gspo.probe import page
from gspo.probe.advice import Advice, advise
from gspo.probe.measure import FEWEST, Measured, ProbePlan, measure
from gspo.probe.source import FILE, depends_on, own_of
from gspo.probe.walk import probed
from gspo.runs.folder import RunFolder
from gspo.runs.log import finite
from gspo.safe import own_folder, replace_file

RUN = "run"  # the folder of the run that is walked along


@dataclass(frozen=True)
class ProbeOptions:
    """The words of `gspo probe`. ages: () for those that suit the run. warm: steps of training before it begins."""

    dir: Path
    groups: int = 32
    fresh: int = 64
    ages: tuple[int, ...] = ()
    warm: int = 2


def plan_of(config: Config, options: ProbeOptions) -> ProbePlan:
    """What is measured. Raises ValueError where fresh groups are too few for an interval."""
    if options.fresh < FEWEST:
        raise ValueError(f"--fresh {options.fresh}: the right gradient needs at least {FEWEST} groups for an interval")
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
    asked = {"depends": depends_on(to_dict(config)), "own": own_of(to_dict(config))}
    config, _ = resolved(config)
    plan = plan_of(config, options)
    _clear(options.dir)
    told: tuple[Measured, Advice] | None = None
    words: list[str] = []
    try:
        with training(probed(config, options.dir / RUN), given=given) as (run, _):
            for found in measure(run, plan):
                told = found, write(config, plan, found, asked, options.dir)  # kept where the next age fails
    finally:
        if told is not None:
            page.write(config, plan, *told, options.dir)
            words = [page.headline(told[1]), *told[1].reasons, *told[0].notes]
    return options.dir / page.NAME, words


def _clear(folder: Path) -> None:
    """Takes away what a probe leaves that ended before it had measured anything. Raises ValueError where more is there, or a
    probe is under way.
    """
    if not folder.exists():
        return
    run = folder / RUN
    if folder.is_file() or any(path != run or not _only_walked(run) for path in folder.iterdir()):
        raise ValueError(f"--dir {folder}: exists already; give another")
    if run.exists():
        try:
            with RunFolder.resume(run):
                shutil.rmtree(run)
        except RuntimeError:
            raise ValueError(f"--dir {folder}: another probe is under way there; wait for it, or give another") from None


def _only_walked(run: Path) -> bool:
    """Whether it is a run that has logged no step and saved nothing, and so no run of the user's."""
    logged = run / "metrics.jsonl"
    told = (logged.exists() and logged.stat().st_size > 0) or (run / "model").exists()
    return not run.is_symlink() and (run / "config.toml").exists() and not told and not any(run.glob("checkpoints/*"))


def write(config: Config, plan: ProbePlan, found: Measured, asked: Mapping[str, Any], folder: Path) -> Advice:
    """probe.json and measured.npz. asked: settings that its advice depends on, and those that it is about."""
    groups = config.rollout.num_prompts / (config.algorithm.mini_batches or 1)
    advice = advise(found, plan.updates, groups, config.algorithm.epochs)
    told: dict[str, Any] = {
        "recommended": None if advice.candidate is None else page.settings(advice.candidate),
        "name": None if advice.candidate is None else advice.candidate.name,
        "reasons": advice.reasons,
        "notes": found.notes,
        **asked,
        "plan": asdict(plan),
        "groups_in_an_update": groups,
        "groups_that_teach": found.groups,
        "mean_length": found.mean_length,
        "reward": found.reward,
        "floor": found.floor,
        "lines": [line_of(line) for line in advice.lines],
        "update_by_age": {name: {age: list(span) for age, span in of.items()} for name, of in advice.by_age.items()},
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
