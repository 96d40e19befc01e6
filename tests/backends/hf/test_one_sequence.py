"""Transformers is told that rows hold one sequence each, and told no longer afterwards."""

import threading

from transformers import masking_utils

from gspo.backends.hf.one_sequence import NAME, one_sequence_a_row


def test_it_ends_with_the_last_thread_that_is_within():
    own, meet, seen = getattr(masking_utils, NAME), threading.Barrier(2), []

    def other():
        with one_sequence_a_row():
            meet.wait()
            meet.wait()
            seen.append(getattr(masking_utils, NAME)(None))
        seen.append(getattr(masking_utils, NAME) is own)

    thread = threading.Thread(target=other)
    thread.start()
    with one_sequence_a_row():
        meet.wait()
        assert getattr(masking_utils, NAME)(None) is None
    assert getattr(masking_utils, NAME)(None) is None  # the other is within
    meet.wait()
    thread.join()
    assert seen == [None, True] and getattr(masking_utils, NAME) is own
