"""Transformers does not look for packed sequences in our passes, and does in those of other threads."""

import threading

import torch
from transformers import masking_utils

from gspo.backends.hf.one_sequence import one_sequence_a_row


def test_it_holds_for_this_thread_and_ends():
    packed, others = torch.tensor([[0, 1, 0, 1]]), []
    with one_sequence_a_row():
        thread = threading.Thread(target=lambda: others.append(masking_utils.find_packed_sequence_indices(packed)))
        thread.start()
        thread.join()
        assert masking_utils.find_packed_sequence_indices(packed) is None
    assert masking_utils.find_packed_sequence_indices(packed).tolist() == others[0].tolist() == [[0, 0, 1, 1]]
