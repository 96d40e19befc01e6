"""What a machine does slowly is measured and said once, where it matters."""

import os
import subprocess
import sys

import pytest
import torch

from gspo.backends.hf.load import wrap_model
from gspo.config.policy import ModelConfig
from gspo.runs import machine
from tests.logged import logs, silent
from tests.tiny_run import model


def test_a_product_of_twice_the_bits_takes_longer():
    assert machine.slowdown(torch.float64) > 1  # on any processor, as bfloat16 on one without instructions for it


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dtype": "bfloat16"}, 'model.dtype = "bfloat16": .* 9.3 times as long in bfloat16 as in float32: set "float32"'),
        ({"autocast": "bfloat16"}, 'model.autocast = "bfloat16": .* 9.3 times as long .*: set "auto"'),
        ({"dtype": "bfloat16", "autocast": "bfloat16"}, 'model.dtype = "bfloat16": .*: set "float32"'),
        ({}, ""),
    ],
    ids=str,
)
def test_products_that_are_slower_in_few_bits_are_warned_of(changes, text, monkeypatch):
    tiny = model()
    for times, warns in ((9.3, bool(text)), (0.3, False)):
        monkeypatch.setattr(machine, "slowdown", {torch.bfloat16: times}.get)
        with logs(text) if warns else silent():
            wrap_model(tiny.model, tiny.tokenizer, ModelConfig(device="cpu", **changes))


def test_threads_on_a_busy_machine_are_warned_of(monkeypatch):
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (9.5, 0.0, 0.0))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for name in machine.WAITING:
        monkeypatch.delenv(name, raising=False)
    with logs("load of this machine is 9.5, and it has 2 cores: 2 threads .*OMP_WAIT_POLICY=PASSIVE, or OMP_NUM_THREADS=1"):
        machine.warn_if_busy(torch.device("cpu"))
    for quiet in (
        lambda m: m.setattr(torch, "get_num_threads", lambda: 1),
        lambda m: m.setattr(machine.os, "cpu_count", lambda: 10),
        lambda m: m.setenv("OMP_WAIT_POLICY", "PASSIVE"),
    ):
        with monkeypatch.context() as m, silent():
            quiet(m)
            machine.warn_if_busy(torch.device("cpu"))
    with silent():
        machine.warn_if_busy(torch.device("meta"))
        machine.warn_if_slow("x", "y", torch.float64, torch.device("meta"))


@pytest.mark.parametrize(
    ("before", "imports", "spins"),
    [
        ({}, "gspo", "1000"),
        ({"GOMP_SPINCOUNT": "5"}, "gspo", "5"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "gspo", None),
    ],
)
def test_threads_spin_briefly_unless_the_user_says_otherwise(before, imports, spins):
    env = {name: value for name, value in os.environ.items() if name not in machine.WAITING} | before
    code = f"import {imports}, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert done.stdout == f"{spins}\n"
