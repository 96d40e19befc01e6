"""Memory of a model in one process, and of a pass on top, in bytes, by formula."""

from __future__ import annotations

from dataclasses import dataclass

from gspo.assembly.host_memory import FLOAT32, MOMENTS

SMALL, SCALED = 4096, 256  # bitsandbytes keeps moments of smaller weights in float32; numbers that share a scale


@dataclass(frozen=True)
class ModelMemory:
    """Memory of a model in one process.

    Attributes:
        weights: Bytes of all weights and buffers, as stored.
        trained: Parameters in each trained weight.
        width: Bytes per trained parameter.
        whole: Bytes of the largest packed weight, unpacked for a matrix product.
    """

    weights: int
    trained: tuple[int, ...]
    width: int
    whole: int = 0


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes that autograd saves in a pass through the model without its head.

    Attributes:
        each: Per token.
        fixed: Independent of the number of tokens.
        layer: Per token, in the largest layer.
        fixed_layer: Independent of the number of tokens, in the largest layer.
    """

    each: float
    fixed: float
    layer: float
    fixed_layer: float


def moments(trained: tuple[int, ...], width: int, bits8: bool) -> int:
    """Bytes of AdamW's moments. `bits8`: bitsandbytes' 8-bit moments, one byte each and a scale per 256 of them."""
    if not bits8:
        return MOMENTS * width * sum(trained)
    return MOMENTS * sum(n * FLOAT32 if n < SMALL else n + FLOAT32 * -(-n // SCALED) for n in trained)
