"""What all tests share: their draws, and the libraries that must be there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.required import check_required

ROOT = Path(__file__).parents[2]
DRAWS = """
import random, numpy, pytest, torch
READ = random.random(), numpy.random.rand(), torch.rand(()).item()

@pytest.mark.parametrize("time", [1, 2])
def test_draws_are_the_same_each_time(time):
    assert (random.random(), numpy.random.rand(), torch.rand(()).item()) == READ
"""


def test_draws_are_the_same_each_time(tmp_path):
    (tmp_path / "test_draws.py").write_text(DRAWS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-c", "/dev/null", str(tmp_path)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert "2 passed" in ended.stdout, ended.stdout


def test_a_library_that_must_be_there_is_not_skipped():
    check_required("")
    check_required("torch,numpy")
    with pytest.raises(pytest.UsageError, match="no_such_library cannot be imported"):
        check_required("torch,no_such_library")
