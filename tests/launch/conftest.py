"""A run of two ranks to which others are compared."""

import pytest

from tests.launch.started import begin, fill, finished


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model, rows, a reward and the settings of a run. Each module has its own: their runs have names."""
    return fill(tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The folder of a run of 6 steps on two ranks."""
    place = fill(tmp_path_factory.mktemp("unbroken"))
    status, output = finished(begin(place, "unbroken", "--scale.ranks=2", "--train.steps=6"))
    assert status == 0, output
    return place / "unbroken"
