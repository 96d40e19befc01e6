import threading

import pytest

from gspo.backends.vllm.threads import at_once
from tests.patience import PATIENCE


def test_calls_are_made_at_the_same_time_and_whoever_waits_gets_their_errors():
    barrier = threading.Barrier(2, timeout=PATIENCE)  # neither passes alone

    def fails():
        barrier.wait()
        raise KeyError("mine")

    good, bad = at_once([barrier.wait, fails])
    assert good.result(PATIENCE) in (0, 1)
    with pytest.raises(KeyError, match="mine"):
        bad.result(PATIENCE)
