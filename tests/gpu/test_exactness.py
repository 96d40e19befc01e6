"""The numbers of the GPU are those of the CPU, and its layouts and types agree as they do there."""

import warnings
from collections import Counter
from contextlib import contextmanager, nullcontext

import gradients
import models
import pytest
import torch
import update

from gspo.backends.hf.model import TOLERANCE
from gspo.backends.hf.policy import HFPolicy
from gspo.config.policy import ModelConfig
from gspo.learner import layout
from gspo.objective.algorithms import ALGORITHMS
from gspo.objective.completions import Completions
from tests.backends.hf.updates import CASES, step, waits_of
from tests.fake_device import fake_gpu
from tests.objective.cases import value_and_gradient

pytestmark = pytest.mark.gpu
WAITS = "synchronizing CUDA operation"  # in torch's warning of one
# Of float32 CUDA has no grouped product of experts: torch then multiplies one by one, and reads the sizes before.
GROUPED = ("torch/nn/functional.py", "torch/autograd/graph.py")


def test_objectives(device, report):
    worst = 0.0
    for name, row in ALGORITHMS.items():
        for seed in range(5):
            logp, old, A, y = gradients.batch(seed)
            there = Completions(y.completion.to(device), y.length.to(device))
            x, z = logp.clone().requires_grad_(), logp.to(device).requires_grad_()
            expected = value_and_gradient(name, x, old, A, y, row.epsilon, row.epsilon_high)
            found = value_and_gradient(name, z, old.to(device), A.to(device), there, row.epsilon, row.epsilon_high)
            for a, b in zip(found, expected):
                worst = max(worst, float((a.cpu() - b).detach().norm() / b.detach().norm()))
    report.check("objectives and their gradients in float64, against the CPU's: relative error", worst, most=1e-9)


@pytest.mark.parametrize("label", CASES)
def test_an_update(label, device, report):
    case = CASES[label]
    expected, (first, _) = step("cpu", **case)[0], step(device, **case)[0]
    narrow = "bfloat16" in (case.get("autocast"), case.get("dtype"))
    error = max(abs(first[name] - expected[0][name]) / abs(expected[0][name]) for name in ("grad_norm", "entropy"))
    report.check(f"an update ({label}), gradient's norm and entropy, against the CPU's: relative error", error,
                 most=TOLERANCE[torch.bfloat16 if narrow else torch.float32])  # fmt: skip


@contextmanager
def waits():
    """What torch says that the host waited for, each time."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield (seen := [])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        seen += [f"{w.filename.rpartition('gspo/')[2]}:{w.lineno}" for w in said if WAITS in str(w.message)]


@pytest.mark.parametrize("label", CASES)
def test_how_often_the_host_waits(label, device, report):
    case = CASES[label]
    step(device, **case)  # kernels that are compiled or chosen at first may wait
    with fake_gpu() if device == "cpu" else nullcontext() as fake:
        seen = step("cuda", waits if fake is None else fake.watched, **case)[2][1]
    if case.get("name") == "qwen3_moe" and "autocast" not in case:
        apart = [place for place in seen if any(file in place for file in GROUPED)]
        report.tell(f"an update ({label}): how often torch's products of experts in float32 wait", len(apart))
        seen = [place for place in seen if place not in apart]
    report.missing |= {f"waits, {label}": str(dict(Counter(seen)))} if len(seen) > waits_of(case) else {}
    report.check(f"an update ({label}): how often the host waits", len(seen), most=waits_of(case))


def passed(policy, batch):
    """Log-probabilities, and the gradient of their sum by weight, on the CPU."""
    for p in policy.parameters():
        p.grad = None
    out = policy.forward(layout.build(batch, policy.shares_prompts), entropy=True, routing=True)
    out.logp.sum().backward()
    found = out.logp.detach().cpu(), torch.cat([p.grad.float().cpu().flatten() for p in policy.parameters()])
    policy.model.model.zero_grad()
    return found


def far(a, b):
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("kind", ["dense", "mixture"])
def test_layouts(kind, device, report):
    model = models.MODELS["3m"][kind](ModelConfig(device=device, autocast="none"))
    batch = update.completions(*((150, 40, 3, 2) if device == "cpu" else (600, 200, 4, 2)))
    expected = passed(HFPolicy(model), batch)
    found = passed(HFPolicy(model, layout="shared"), batch)
    for what, a, b in zip(("log-probabilities", "gradient"), found, expected):
        report.check(f"{kind}, shared against padded rows, float32, {what}: relative error", far(a, b), most=1e-3)


@pytest.mark.parametrize("kind", ["dense", "mixture"])
@pytest.mark.parametrize("name", ["padded", "shared"])
def test_autocast(kind, name, device, report):
    batch, found = update.completions(60, 40, 3, 2), []
    for autocast in ("none", "bfloat16"):
        model = models.MODELS["3m"][kind](ModelConfig(device=device, autocast=autocast))
        found.append(passed(HFPolicy(model, layout=name), batch))
    for what, a, b in zip(("log-probabilities", "gradient"), found[1], found[0]):
        report.check(f"{kind}, {name}, bfloat16 against float32, {what}: relative error", far(a, b),
                     most=2 * TOLERANCE[torch.bfloat16])  # fmt: skip
