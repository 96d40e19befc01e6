"""What corrections take of the mismatch of samplers with rounded weights."""

import pytest
from mismatch import line, mismatch, taken

from gspo.objective.algorithms import BOUNDS
from gspo.types import Prompt, Sampling
from tests.tiny_run import sharpened

PROMPTS = [Prompt(str(i), "", (1, i)) for i in range(4, 12)]


def found(kind, factor):
    return mismatch(sharpened(factor), kind, PROMPTS, 8, Sampling(16))


def test_each_correction_takes_something_of_an_int4_sampler_that_is_far_off():
    """A KL of .03 nats a token, as of SmolLM2-135M in fp8."""
    shares = taken(*found("int4", 8))
    assert shares.keys() == BOUNDS.keys() and all(0 < share < 1 for share in shares.values()), shares


@pytest.mark.parametrize("kind", ["none", "bf16"])
def test_no_correction_takes_anything_of_an_exact_sampler_and_little_of_bfloat16(kind):
    whole = found(kind, 2)
    shares = taken(*whole)
    assert max(shares.values()) <= (0 if kind == "none" else 0.1) and f"| {kind} |" in line(kind, *whole)
