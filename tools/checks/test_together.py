"""A function on several ranks: what is said of a rank that a signal has ended."""

import os
import signal

import pytest

from tests.together import together


def dies(ranks):
    if ranks.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_rank_without_an_answer_is_named_and_not_waited_for():
    with pytest.raises(AssertionError, match=r"without an answer.*\{1: -9\}"):
        together(dies, 2)
