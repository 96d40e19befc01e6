import threading

import pytest

from gspo.backends.vllm.threads import at_once


def test_calls_are_made_at_the_same_time_and_whoever_waits_gets_their_errors():
    barrier = threading.Barrier(2, timeout=20.0)  # neither passes alone

    def fails():
        barrier.wait()
        raise KeyError("mine")

    good, bad = at_once([barrier.wait, fails])
    assert good.result(20.0) in (0, 1)
    with pytest.raises(KeyError, match="mine"):
        bad.result(20.0)
