"""Whole runs of four ranks, in copies and with divided experts, and runs that go on with other numbers of ranks."""

import pytest

from tests.launch.started import FORKED, apart, begin, completions, finished

HSDP, EXPERTS = ("--scale.ranks=4", "--scale.data_parallel_replicas=2"), ("--scale.ranks=4", "--scale.expert_parallel=4")


@pytest.fixture(scope="module")
def single(place):
    """A run of 6 steps in one process."""
    status, output = finished(begin(place, "alone", "--train.steps=6"))
    assert status == 0, output
    return "alone"


@pytest.mark.parametrize("name, scale", [pytest.param("hsdp", HSDP, marks=pytest.mark.slow), ("experts", EXPERTS)])
def test_four_ranks_make_the_run_of_one(place, single, name, scale):
    status, output = finished(begin(place, name, "--train.steps=6", *scale, faults=FORKED))
    assert status == 0, output
    assert completions(place, name) == completions(place, single) and len(completions(place, name)) == 192
    assert apart(place, name, single) < 1e-6


@pytest.mark.slow
def test_a_run_goes_on_with_fewer_and_with_more_ranks(place, single):
    for steps, scale in ((2, HSDP), (4, ("--scale.ranks=2", "--scale.expert_parallel=2")), (6, EXPERTS)):
        resume = ["--resume"] if steps > 2 else []
        status, output = finished(begin(place, "reshaped", f"--train.steps={steps}", *scale, *resume, faults=FORKED))
        assert status == 0, output
    assert completions(place, "reshaped") == completions(place, single) and apart(place, "reshaped", single) < 1e-6
