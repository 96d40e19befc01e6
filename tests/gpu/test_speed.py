"""Times of an update by layout and shape, and what they say of `train.layout = "auto"`."""

import argparse
import statistics
import time

import gathering
import pytest
import torch
import update
from machine import free_memory, matmul_rate
from models import MODELS

from gspo.backends.hf.policy import HFPolicy
from gspo.config.policy import ModelConfig

pytestmark = pytest.mark.gpu
# P, R, G and prompts: from much that is shared to almost nothing.
SHAPES = [(512, 64, 8, 4), (256, 128, 8, 4), (64, 256, 8, 4), (23, 57, 8, 8), (2048, 256, 8, 1), (512, 2048, 8, 1)]
SHAPES += [(1024, 4096, 4, 1), (16, 512, 4, 8)]
SMALL = [(64, 16, 4, 2), (16, 32, 4, 2), (4, 32, 4, 2)]
BUDGET = 8192  # train.micro_batch_tokens
AMPLE = 48  # GiB in which the large models need no checkpointing


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_updates_by_layout(kind, device, size, report):
    dry, checkpointing = device == "cpu", size == "0.6b" and free_memory(device) < AMPLE
    model = MODELS[size][kind](ModelConfig(device=device))
    rate = matmul_rate(device, model.compute_dtype, 512 if dry else 8192)
    options = argparse.Namespace(
        layouts=["padded", "shared"], checkpointing=checkpointing, budget=BUDGET, clock="wall", repeats=5
    )
    label = f"{kind}, {size}" + (", checkpointing" if checkpointing else "")
    report.tell(f"{label}: TFLOP/s in a large {model.compute_dtype} product", rate / 1e12)
    rows = []
    for shape in SMALL if dry else SHAPES:
        timed = [{"model": label} | row for row in update.compare(model, shape, rate, options)]
        rows += timed
        report.speeds += timed
        report.write()  # the next may not end
        if not dry:
            torch.cuda.empty_cache()
    report.tell(f"{label}: best share of the roofline (MFU)", max(row["roofline"] for row in rows))
    timed = timed_shapes(rows)
    assert len(timed) == len(rows) / 2
    report.rules[label] = gathering.said(gathering.rule(timed))
    report.rules.pop("all models", None)  # the last word
    report.rules["all models"] = gathering.said(gathering.rule(timed_shapes(report.speeds)))


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_a_new_shape_costs_little(kind, device, report):
    """Micro-batches have a shape of their own each, and the cache one at each token."""
    model = MODELS["3m"][kind](ModelConfig(device=device))
    policy, seconds = HFPolicy(model, layout="padded"), []
    for longest in (24, 40, 41, 42, 43, 41, 42, 43):
        run = update.one_pass(policy, update.completions(longest, 20, 4, 2), BUDGET)
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    ratio = statistics.median(seconds[2:5]) / statistics.median(seconds[5:])
    name = f"{kind}, 3m: seconds of a pass of a new shape, over those of one that was seen"
    if device == "cpu":  # whose cores others use too
        report.tell(name, ratio, "at most 5 on a GPU")
    else:
        report.check(name, ratio, most=5)


def timed_shapes(rows):
    """Both layouts of each model and shape together."""
    both = {}
    for row in rows:
        name = f"{row['model']}, P {row['shape'][0]} R {row['shape'][1]} G {row['shape'][2]}"
        both.setdefault((name, row["places"], row["tokens"]), {})[row["layout"]] = row["seconds"]
    return [gathering.Timed(*shape, seconds["padded"], seconds["shared"]) for shape, seconds in both.items()]
