"""When a run evaluates."""

import math
from types import SimpleNamespace

import pytest

from gspo.config.files import from_dict
from gspo.training.evaluation import evaluates, rank


@pytest.mark.parametrize(
    ("every", "expected"), [(0, []), (4, [0, 4, 8, 10]), (5, [0, 5, 10]), (100, [0, 10])], ids=["never", "4", "5", "ends"]
)
def test_before_the_first_step_every_so_often_and_after_the_last(every, expected):
    config = from_dict({"eval": {"every": every}, "train": {"steps": 10}})
    assert [step for step in range(11) if evaluates(SimpleNamespace(config=config, step=step))] == expected


def test_an_evaluation_that_was_hardly_scored_is_not_the_best():
    assert rank([0.5, 1.0]) == 0.75 and rank([1.0, None, None, None]) == 0.25
    assert rank([-1.0, -3.0, None, None]) == -2.5 and math.isnan(rank([None, None]))
