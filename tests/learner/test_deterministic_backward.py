"""torch's mode is the process's: what several threads do with it, and what is left of it."""

import threading

import pytest
import torch

from gspo.learner.deterministic_backward import in_one_order
from tests.patience import PATIENCE

CPU = torch.device("cpu")


def mode():
    return torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory


def test_it_is_on_inside_and_the_callers_again_behind():
    with in_one_order(CPU):
        assert mode() == (1, False)
        with in_one_order(CPU):
            assert mode() == (1, False)
        assert mode() == (1, False)
    assert mode() == (0, True)
    with pytest.raises(KeyError), in_one_order(CPU):
        raise KeyError
    assert mode() == (0, True)
    with in_one_order(torch.device("cuda", 0)):
        assert mode() == (0, True)


def test_a_stricter_mode_of_the_caller_comes_back():
    torch.set_deterministic_debug_mode("error")
    try:
        with in_one_order(CPU):
            assert mode() == (1, False)
        assert mode() == (2, True)
    finally:
        torch.set_deterministic_debug_mode("default")


def test_threads_that_overlap_do_not_undo_each_other():
    entered, left, seen = threading.Event(), threading.Event(), []

    def other():
        with in_one_order(CPU):
            entered.set()
            left.wait(PATIENCE)
            seen.append(mode())

    thread = threading.Thread(target=other)
    with in_one_order(CPU):
        thread.start()
        assert entered.wait(PATIENCE)
    left.set()
    thread.join()
    assert seen == [(1, False)] and mode() == (0, True)
