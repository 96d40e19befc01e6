"""The suite for a GPU without one: what it says, what is left out, and what its report makes of numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.report import DRY, Report

ROOT = Path(__file__).parents[2]


def suite(*options, **env):
    """One file of it, in a process of its own."""
    line = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu/test_few_bits.py", *options]
    kept = {name: value for name, value in os.environ.items() if name != "GSPO_GPU_DRY"}
    return subprocess.run(line, cwd=ROOT, env=kept | env, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do():
    done = suite("-m", "gpu")
    assert done.returncode == 2 and "sees no GPU here" in done.stdout and "make gpu DRY=1" in done.stdout


def test_nothing_of_it_runs_unless_it_is_asked_for():
    done = suite()
    assert "3 deselected" in done.stdout and "skipped" not in done.stdout and "passed" not in done.stdout


def test_a_report_says_what_kept_its_limit_and_what_did_not(tmp_path):
    report = Report(dry=False, machine={"gpu": "X"})
    report.check("near", 0.5, most=1.0)
    report.tell("share", 0.25)
    assert report.passed and "Passed: 1 of 1" in report.text() and DRY not in report.text()
    with pytest.raises(AssertionError, match="far: 3, and it must be 0 to 2"):
        report.check("far", 3.0, least=0.0, most=2.0)
    text = report.write(tmp_path).read_text()
    assert "NOT passed: 1 of 2" in text and "| far | 3 | 0 to 2 | NO |" in text and "| share | 0.25 |  | told |" in text
    assert [check["passed"] for check in json.loads((tmp_path / "gpu-report.json").read_text())["checks"]] == [
        True,
        None,
        False,
    ]
    nan = Report(dry=True)
    with pytest.raises(AssertionError):
        nan.check("not a number", float("nan"), most=1.0)
    assert DRY in nan.text()


def test_an_error_is_not_passed_and_a_skip_is_named():
    report = Report(dry=False, missing={"test_with_vllm (call)": "vLLM is not installed here"})
    assert report.passed and "- test_with_vllm (call): vLLM is not installed here" in report.text()
    report.missing["test_layouts[dense] (call)"] = "failed: RuntimeError: no kernel"
    assert not report.passed


def test_a_report_shows_the_times_and_what_they_say():
    row = {"model": "dense", "shape": (512, 64, 8, 2), "places": 9216, "tokens": 2048, "layout": "shared", "seconds": 0.25}
    row |= {"ratio": 3.5, "low": 3.0, "high": 4.0, "roofline": 0.41, "GiB": 1.5}
    report = Report(dry=True, speeds=[row], rules={"dense": "Set X."})
    assert "| dense | 512, 64, 8, 2 | 4.50 | shared | 0.25 | 3.50 (3.00 to 4.00) | 41% | 1.50 |" in report.text()
    assert "by dense: from a CPU's times, so not to be set: Set X." in report.text()
