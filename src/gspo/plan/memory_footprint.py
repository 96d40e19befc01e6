"""What one process holds of a model, and what a pass takes on top, in bytes, by formula."""

from __future__ import annotations

from dataclasses import dataclass

from gspo.assembly.host_memory import FLOAT32, MOMENTS

SMALL, SCALED = 4096, 256  # bitsandbytes keeps moments of smaller weights in float32; so many numbers share a scale


@dataclass(frozen=True)
class ModelMemory:
    """A model in one process. weights: bytes of all of them and its buffers, as they are kept. trained: numbers in each that
    is trained; width: bytes of such a number. whole: bytes of the largest packed weight while a product reads it.
    """

    weights: int
    trained: tuple[int, ...]
    width: int
    whole: int = 0


@dataclass(frozen=True)
class ActivationMemory:
    """What autograd keeps of a pass through the model without its head: bytes for each token, and whatever the tokens; and
    the same of its largest layer.
    """

    each: float
    fixed: float
    layer: float
    fixed_layer: float


def moments(trained: tuple[int, ...], width: int, bits8: bool) -> int:
    """Bytes of AdamW's moments. bits8: bitsandbytes' own, a byte each and a scale for 256 of them."""
    if not bits8:
        return MOMENTS * width * sum(trained)
    return MOMENTS * sum(n * FLOAT32 if n < SMALL else n + FLOAT32 * -(-n // SCALED) for n in trained)
