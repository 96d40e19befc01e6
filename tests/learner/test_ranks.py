"""What ranks say to one another, and how they notice that one is gone."""

import time

import pytest
import torch
import torch.distributed as dist

from gspo.learner.ranks import OneRank, RankLost, noticed, whole
from tests.together import together

pytestmark = pytest.mark.timeout(120)


def talk(ranks):
    command = ranks.told({"do": torch.arange(3)} if ranks.number == 0 else None)
    return ranks.number, ranks.size, ranks.gathered(ranks.number**2), ranks.any(ranks.number == 1), ranks.any(False), command


def test_every_rank_hears_all_and_the_leader_tells():
    for number, (mine, size, squares, one, none, command) in enumerate(together(talk, 3)):
        assert (mine, size, squares, one, none) == (number, 3, [0, 1, 4], True, False)
        assert command["do"].tolist() == [0, 1, 2]


def test_a_process_alone_says_it_to_itself():
    alone = OneRank()
    assert (alone.number, alone.size, alone.gathered("x"), alone.any(True), alone.any(False)) == (0, 1, ["x"], True, False)
    assert whole(torch.ones(2)).tolist() == [1, 1]


def loses(ranks, hangs):
    """What the first rank notices when the second is gone, or silent, and after how long."""
    if ranks.number == 1:
        time.sleep(6 if hangs else 0.2)
        return None  # and its process ends
    begin = time.monotonic()
    try:
        with noticed():
            ranks.gathered("still there")
    except RankLost as error:
        return str(error), time.monotonic() - begin
    return None


@pytest.mark.parametrize("hangs", [False, True])
def test_a_rank_that_is_gone_or_silent_is_noticed(hangs):
    text, seconds = together(loses, 2, hangs, waits=2.0)[0]
    assert text.startswith("rank 0: another rank is gone or did not answer in time")
    assert 1.5 < seconds < 5 if hangs else seconds < 1.5


def test_other_errors_pass():
    with pytest.raises(ValueError, match="mine"), noticed():
        raise ValueError("mine")
    with pytest.raises(RuntimeError, match="out of memory"), noticed():
        raise RuntimeError("out of memory")
    assert not dist.is_initialized()
