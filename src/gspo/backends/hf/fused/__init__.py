"""Compiled kernels for a CPU, in place of a model's own small operations."""

from gspo.backends.hf.fused.build import library, missing
from gspo.backends.hf.fused.modules import place, placed
from gspo.backends.hf.fused.ops import attend, combine, experts, multiplies, sent, sort_choices, suits, swiglu_halves

__all__ = [
    "attend", "combine", "experts", "library", "missing", "multiplies", "place", "placed", "sent", "sort_choices", "suits",
    "swiglu_halves",
]  # fmt: skip
