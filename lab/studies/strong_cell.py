"""One cell of strong.py: its runs one after the other, and what is kept of each."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import strong
import torch
import world
from dials import dialled
from mechanism import Point
from probe_cell import model_of, rounded
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import gspo.api
import gspo.report.page
from gspo.compare.analysis import collapsed
from gspo.learner.learner import LocalLearner
from gspo.learner.objective import PolicyObjective
from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from gspo.objective.losses import Surrogate, bounded, clipped
from gspo.report.read import RunMetrics, read_run
from gspo.runs.log import finite

CENTRED = "gspo_centred"


def gspo_centred(logp: Tensor, logp_old: Tensor, A: Tensor, y: Completions, e_low: float, e_high: float) -> Surrogate:
    """GSPO, Eq. 5, of s_i / exp(mean of log s): the mean over the completions that the loss is given, a constant."""
    log_s = y.mean(logp - logp_old)
    s = bounded(log_s - log_s.detach().mean()).exp()
    term, low, high = clipped(s, A, e_low, e_high)
    return Surrogate(-term, s, low, high)


@contextlib.contextmanager
def centring() -> Iterator[None]:
    """Has it in the table of algorithms. A range that sets itself sees the centred ratio."""
    plain = PolicyObjective.watched

    def watched(self: PolicyObjective, surrogate: Surrogate, logp: Tensor, logp_old: Tensor, y: Completions) -> Tensor:
        return surrogate.ratio if self.row.loss_function is gspo_centred else plain(self, surrogate, logp, logp_old, y)

    ALGORITHMS[CENTRED] = dataclasses.replace(ALGORITHMS["gspo"], loss=gspo_centred)
    PolicyObjective.watched = watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ALGORITHMS[CENTRED]
        PolicyObjective.watched = plain  # type: ignore[method-assign]


@contextlib.contextmanager
def norms_by_update() -> Iterator[list[float]]:
    """Takes down the gradient norm of each update; a step's metrics have their mean."""
    plain, norms = LocalLearner._update, []

    def update(self: LocalLearner, number: int) -> Any:
        told = plain(self, number)
        norms.append(float(told[0]["grad_norm"]))
        return told

    LocalLearner._update = update  # type: ignore[method-assign]
    try:
        yield norms
    finally:
        LocalLearner._update = plain  # type: ignore[method-assign]


def sections(cell: strong.RunsCell, own: strong.Sections, folder: Path) -> strong.Sections:
    """The settings of a run. A mini-batch is one micro-batch, so that a mean over it is one over what the loss is given."""
    mine: strong.Sections = {
        "task": {"seed": cell.seed}, "train": {"seed": cell.seed}, "log": {"dir": str(folder)},
    }  # fmt: skip
    setting = dict(strong.SETTINGS[cell.setting])
    if "sampler" in setting:
        setting["sampler"] = dialled(**setting["sampler"])
    return strong.merged(strong.RUN, mine, setting, own)


def run(cell: strong.RunsCell, own: strong.Sections, start: Path, folder: Path) -> dict[str, Any]:
    """Trains from the cold start, and tells. A run that ends with an error has lost, whatever it had reached."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(start), AutoTokenizer.from_pretrained(start)
    rows = world.rows(strong.PROMPTS, cell.seed)
    # Nobody reads a run's page, and drawing it takes an eighth of the run.
    with norms_by_update() as norms, mock.patch.object(gspo.report.page, "report_of"):
        try:
            made = gspo.train(model, rows, [world.worth], tokenizer=tokenizer, **sections(cell, own, folder))  # type: ignore[arg-type]
        except RuntimeError as error:
            lost = {"reward": -1.0, "mean": -1.0, "spike": None, "collapsed": True, "clipped": None, "epsilon": []}
            return lost | {"steps": len(read_run(folder).lines), "lost": str(error)}
    if not (made.finished or made.collapsed):
        sys.exit(f"{cell.name}: stopped before its end, and not kept")
    return numbers(read_run(folder), norms)


def numbers(told: RunMetrics, norms: Sequence[float]) -> dict[str, Any]:
    """What is kept of a run. norms: of each update."""
    _, rewards = told.series("reward")
    middle = float(np.median(norms))
    clips = {sign: float(told.series(f"clip_ratio/{sign}")[1].mean()) for sign in ("negative", "positive")}
    return {
        "reward": float(rewards[-strong.LAST :].mean()), "mean": float(rewards.mean()),
        "spike": math.log10(max(norms) / middle) if middle > 0 else math.nan, "collapsed": collapsed(told),
        "clipped": clips, "epsilon": told.series("clip/epsilon")[1].tolist(), "steps": len(rewards), "lost": "",
    }  # fmt: skip


def run_cell(cell: strong.RunsCell, models: Path) -> dict[str, Any]:
    """All its runs."""
    point = Point(experts=0 if strong.model_of(cell.setting) == "dense" else 32)
    start = model_of(point, cell.seed, {"steps": strong.COLD_START}, models)
    found = []
    with centring():
        for variant, own in cell.runs:
            made = Path(tempfile.mkdtemp())
            try:
                found.append({"variant": variant} | run(cell, own, start, made / "run"))
            finally:
                shutil.rmtree(made)
    return {"runs": rounded(finite(found))}


def main(name: str) -> None:
    """Runs a cell of the plan."""
    torch.set_num_threads(1)
    cell = {each.name: each for each in strong.STUDY.cells()}[name]
    assert isinstance(cell, strong.RunsCell)
    strong.STUDY.keep(cell, run_cell(cell, strong.STUDY.work / "models"))


if __name__ == "__main__":
    main(sys.argv[1])
