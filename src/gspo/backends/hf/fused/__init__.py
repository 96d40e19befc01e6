"""Compiled CPU kernels that replace a model's own small operations."""

from gspo.backends.hf.fused.build import library, missing
from gspo.backends.hf.fused.modules import SIZES, copy_of, norm_of, place, placed, turns_by_kernel
from gspo.backends.hf.fused.ops import (
    attend,
    attend_step,
    combine,
    draw,
    experts,
    multiplies,
    sent,
    sort_choices,
    suits,
    swiglu_halves,
)

__all__ = [
    "SIZES", "attend", "attend_step", "combine", "copy_of", "draw", "experts", "library", "missing", "multiplies", "norm_of",
    "place", "placed", "sent", "sort_choices", "suits", "swiglu_halves", "turns_by_kernel",
]  # fmt: skip
