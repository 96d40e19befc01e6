"""One cell of mechanism.py: the probe of one setting and one seed, and what is kept of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import world
from dials import dialled
from jitter import jittered
from mechanism import ALGORITHM, DIALS, PROMPTS, SIZES, STUDY, Point, ProbeCell, cells
from probe.measure import Measured, ProbePlan, measure
from probe.merit import Resamples, merit, signal, span
from probe.walk import probed
from transformers import AutoModelForCausalLM, AutoTokenizer

from gspo.assembly.assemble import training
from gspo.assembly.call_inputs import CallInputs
from gspo.config.algorithm import resolved
from gspo.config.files import as_config
from gspo.runs.log import finite

DIGITS = 5  # of numbers that are kept


def model_of(point: Point, seed: int, sizes: Mapping[str, int], models: Path) -> Path:
    """The folder of the cold start, which is made where it is not there."""
    made_of = hashlib.sha256(json.dumps(world.settings(), sort_keys=True).encode()).hexdigest()[:8]
    folder = models / f"{point.experts}-{point.per_token}-{point.layers}-{sizes['steps']}-{made_of}-seed{seed}"
    if not folder.exists():
        model, tokenizer, loss = world.cold_start(point.experts, point.per_token, point.layers, seed, sizes["steps"])
        models.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=models))
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        (made / "loss.txt").write_text(f"{loss}\n", encoding="utf-8")
        try:
            os.rename(made, folder)
        except OSError:  # another process has made the same
            shutil.rmtree(made)
    return folder


def sections(point: Point, seed: int, sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The settings of the run that is probed."""
    return {
        "model": {"path": "given", "device": "cpu"},
        "task": {"source": "given", "seed": seed},
        "rollout": {
            "num_prompts": sizes["update"] * point.mini_batches, "num_generations": sizes["generations"],
            "max_completion_length": point.length,
        },
        "algorithm": ALGORITHM | {"mini_batches": point.mini_batches, "epochs": point.epochs},
        "optimizer": {"lr": point.rate},
        "sampler": dialled(point.quantize),
        "train": {"seed": seed},
        "eval": {"num_prompts": 0},
    }  # fmt: skip


def run_cell(point: Point, seed: int, sizes: Mapping[str, int], models: Path) -> dict[str, Any]:
    """What the probe finds, in plain types. seconds: of the processor, without the cold start's."""
    folder = model_of(point, seed, sizes, models)
    begin = time.process_time()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    given = CallInputs(model, tokenizer, world.rows(PROMPTS, seed), None, [world.worth])
    with tempfile.TemporaryDirectory() as made:
        config, _ = resolved(as_config(sections(point, seed, sizes), {}))
        updates = point.mini_batches * point.epochs
        plan = ProbePlan(sizes["groups"], sizes["fresh"], point.ages, updates, sizes["warm"])
        with training(probed(config, Path(made, "run")), given=given) as (run, _):
            if point.jitter:
                jittered(run, point.jitter)
            *_, found = measure(run, plan)
    nats = float((folder / "loss.txt").read_text(encoding="utf-8"))
    told = {"nats": nats, "seconds": time.process_time() - begin} | summary(found, sizes["update"])
    return rounded(finite(told))  # type: ignore[no-any-return]


def summary(found: Measured, update: int) -> dict[str, Any]:
    """What is kept: the numbers of each age, and of each candidate [estimate, low, high], by resampling groups."""
    ages = []
    for age in found.ages:
        merits = {}
        if age.products:
            measured, fresh = next(iter(age.products.values())).cross.shape
            resamples = Resamples.of(measured, fresh, age.age, update)
            for name, products in age.products.items():
                each = merit(products, resamples, update)
                merits[name] = {part: list(span(getattr(each, part))) for part in ("direction", "noise", "update")}
                merits[name] |= {"largest": each.largest, "told": signal(products.truth, resamples.fresh)[1]}
        ages.append(
            {
                "age": age.age, "ratios": age.ratios, "lengths": age.lengths, "law": age.law, "agreement": age.agreement,
                "clipped": {name: list(shares) for name, shares in age.clipped.items()}, "merits": merits,
            }
        )  # fmt: skip
    return {
        "groups": found.groups, "of": found.of, "mean_length": found.mean_length, "reward": found.reward,
        "floor": found.floor, "clip": {name: clip and list(clip) for name, clip in found.clip.items()},
        "notes": found.notes, "ages": ages,
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """With as many digits as are kept."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def main(name: str) -> None:
    """Runs a cell of the plan, and writes its result as a whole or not at all."""
    cell: ProbeCell = {each.name: each for each in cells(DIALS)}[name]
    STUDY.keep(cell, run_cell(cell.point, cell.seed, SIZES, STUDY.work / "models"))


if __name__ == "__main__":
    main(sys.argv[1])
