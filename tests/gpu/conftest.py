"""The suite that a first person with a GPU runs: `make gpu`. GSPO_GPU_DRY=1 runs all of it on a CPU, at small sizes."""

import os
import subprocess
import sys

import pytest
import torch

from tests.gpu.report import ROOT, Report

sys.path.append(str(ROOT / "lab" / "speed"))

import machine

DRY = os.environ.get("GSPO_GPU_DRY") == "1"
REPORT = pytest.StashKey[Report]()
ROOM = 20  # GiB that the large models need


def report_of(config):
    if REPORT not in config.stash:
        config.stash[REPORT] = Report(DRY)
    return config.stash[REPORT]


@pytest.fixture(scope="session")
def device():
    """What is tried: the GPU that torch would use, in the dry form the CPU."""
    if not DRY and not torch.cuda.is_available():
        pytest.exit(
            f"torch {torch.__version__} sees no GPU here. Install torch for your GPU into .venv (pytorch.org says how) and "
            "run `make gpu` again; `make gpu DRY=1` runs all of it on the CPU, at small sizes",
            returncode=2,
        )
    return "cpu" if DRY else "cuda"


@pytest.fixture(scope="session")
def size(device):
    """Of the models that are timed: lab/speed/models.py."""
    return "0.6b" if device == "cuda" and machine.free_memory(device) >= ROOM else "3m"


@pytest.fixture(scope="session")
def report(device, request):
    report = report_of(request.config)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    report.machine = machine.describe(device) | {"gspo": commit.stdout.strip() or "unknown commit"}
    report.machine["free memory, GiB"] = round(machine.free_memory(device), 1)
    if device == "cuda":
        report.machine |= {"compute capability": ".".join(map(str, torch.cuda.get_device_capability()))}
        report.machine |= {"CUDA": torch.version.cuda or torch.version.hip}
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    if "gpu" in item.keywords and (outcome.skipped or outcome.failed) and call.excinfo is not None:
        said = str(call.excinfo.value).strip().partition("\n")[0]
        why = said if outcome.skipped else f"failed: {call.excinfo.typename}: {said}"
        report_of(item.config).missing[f"{item.name} ({outcome.when})"] = why
    if call.when == "teardown" and (report := report_of(item.config)).machine:
        report.write()  # as it stands: a GPU that hangs, or whoever ends the process, takes nothing with it
    return outcome


def pytest_sessionfinish(session):
    report = session.config.stash.get(REPORT, None)
    if report is not None and report.machine:
        print(f"\nthe report: {report.write()}, and gpu-report.json beside it")
