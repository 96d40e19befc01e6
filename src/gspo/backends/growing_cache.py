"""A key-value cache for decoding in which a new token costs no copy of those before it."""

from __future__ import annotations

from torch import Tensor
from transformers.cache_utils import DynamicLayer

FIRST_BLOCK = 128  # positions that a fresh buffer has room for, beyond the prompt


class GrowingLayer(DynamicLayer):
    """Keys and values of one full-attention layer in buffers [B, heads, room, D] with room to spare.

    The spare room doubles whenever it is used up; `room` is the most positions ever needed.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.length, self.spare = room, 0, FIRST_BLOCK

    def get_seq_length(self) -> int:
        """Positions written."""
        return self.length

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, heads, L, D]; returns views of all that is written."""
        # Under autocast rotary embeddings make keys float32, and attention would cast all of them at every token.
        key_states = key_states.to(value_states.dtype)
        if not self.is_initialized:  # the prompt: `reorder_cache` makes the buffers, for as many rows as are wanted
            self.dtype, self.device, self.length = key_states.dtype, key_states.device, key_states.shape[2]
            self.keys, self.values, self.is_initialized = key_states, value_states, True
            return key_states, value_states
        end = self.length + key_states.shape[2]
        if end > self.keys.shape[2]:
            self._move(None, end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep, drop or repeat rows: row i becomes the present row `beam_idx[i]`."""
        self._move(beam_idx, self.length + 1)

    def _move(self, rows: Tensor | None, need: int) -> None:
        """New buffers for all rows or for `rows`, with room for `need` positions."""
        size = self.keys.shape[2]
        if need > size:
            size, self.spare = max(need, min(self.room, need + self.spare)), 2 * self.spare
        for name in ("keys", "values"):
            old = getattr(self, name)[:, :, : self.length]
            old = old if rows is None else old.index_select(0, rows)
            new = old.new_empty(*old.shape[:2], size, old.shape[3])
            new[:, :, : self.length] = old
            setattr(self, name, new)
