"""What all tests share: their draws, and the libraries that must be there."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.required import check_required

ROOT = Path(__file__).parents[1]
READ = random.random(), np.random.rand(), torch.rand(()).item()


@pytest.mark.parametrize("time", [1, 2])
def test_draws_are_the_same_each_time(time):
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == READ
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    assert (random.random(), np.random.rand(), torch.rand(()).item()) == READ


def test_a_library_that_must_be_there_is_not_skipped():
    check_required("")
    check_required("torch,numpy")
    with pytest.raises(pytest.UsageError, match="no_such_library cannot be imported"):
        check_required("torch,no_such_library")


def test_each_environment_of_its_own_says_what_it_must_have():
    """Each target whose tests another environment skips: those of make test-vllm ask for vLLM by its Python."""
    makefile = (ROOT / "Makefile").read_text()
    targets = dict(re.findall(r"^(test-[\w-]+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    assert len(targets) > 6
    for name, lines in targets.items():
        assert name == "test-vllm" or "GSPO_REQUIRE=" in lines, name
