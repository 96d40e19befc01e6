"""When a run evaluates."""

from types import SimpleNamespace

import pytest

from gspo.config.files import from_dict
from gspo.training.evaluation import evaluates


@pytest.mark.parametrize(
    ("every", "expected"), [(0, []), (4, [0, 4, 8, 10]), (5, [0, 5, 10]), (100, [0, 10])], ids=["never", "4", "5", "ends"]
)
def test_before_the_first_step_every_so_often_and_after_the_last(every, expected):
    config = from_dict({"eval": {"every": every}, "train": {"steps": 10}})
    assert [step for step in range(11) if evaluates(SimpleNamespace(config=config, step=step))] == expected
