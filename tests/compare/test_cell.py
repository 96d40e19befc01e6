"""A cell whose study is killed."""

import signal
import sys

import pytest

from tests.compare.forked import ForkedGspo
from tests.compare.test_cells import begun, cells
from tests.launch.started import wait_for
from tests.patience import PATIENCE


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end on Linux alone")
def test_cells_of_a_study_that_is_killed_save_and_end(place):
    """The study is a fork; its cell is started, for what it asks of the kernel must outlast that."""
    process, _, metrics = begun(place, 4000, ForkedGspo)
    assert cells(place, process)
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    wait_for(lambda: not cells(place))
    done = metrics.read_text().count("\n")
    assert 3 < done < 4000
    assert list((metrics.parent / "checkpoints").glob(f"step_{done:06d}"))  # it saved the step it was in
