"""A key-value cache for CPU decoding in which all completions of a prompt share one copy of its keys and values.

Decoding on a CPU is memory-bound: with 8 completions per prompt, most of what attention reads is 8 copies of the prompt.
Here the cache of a layer stores each prompt once, separate from the completions, and attention (`attend`) reads both. The
softmax runs over both parts together, so the result equals plain attention up to the order of sums.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.masking_utils import sdpa_mask

from gspo.backends.hf.model import OWN_ATTENTION

NAME = "gspo_shared_prompt"
FIRST_BLOCK = 128  # positions beyond the prompt in a new buffer


class SharedCache(DynamicCache):
    """The cache of a model with full attention in every layer: first filled with the prompts [P, L], then expanded to the
    completions by `fan_out`. capacity: maximum tokens of a completion.
    """

    layers: list[SharedLayer]  # type: ignore[assignment]

    def __init__(self, layers: int, capacity: int) -> None:
        super().__init__()
        self.layers = [SharedLayer(capacity) for _ in range(layers)]

    def fan_out(self, prompt_of: Tensor, hide: Tensor | None) -> None:
        """From here on, row i is a completion of prompt `prompt_of[i]`. hide [P, L]: True at padding of the prompts."""
        dtype = self.layers[0].prompt_keys.dtype
        self.bias = None if hide is None else torch.zeros(hide.shape, dtype=dtype).masked_fill_(hide, torch.finfo(dtype).min)
        self.prompt_of = prompt_of
        self._arrange()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps, drops or repeats completions: the new row i is the old row `beam_idx[i]`. Evicts prompts without rows."""
        prompts, self.prompt_of = self.prompt_of[beam_idx].unique(return_inverse=True)
        if len(prompts) < len(self.layers[0].prompt_keys):
            self.bias = None if self.bias is None else self.bias[prompts]
            for layer in self.layers:
                layer.prompt_keys, layer.prompt_values = layer.prompt_keys[prompts], layer.prompt_values[prompts]
        for layer in self.layers:
            layer.reorder_cache(beam_idx)
        self._arrange()

    def _arrange(self) -> None:
        places = Places(self.prompt_of, self.bias)
        for layer in self.layers:
            layer.places = places


class GrowingLayer(DynamicLayer):
    """Keys and values of one full-attention layer in preallocated buffers [B, heads, room, D]. The spare room doubles
    whenever it is used up. capacity: maximum number of positions ever needed.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.length, self.spare = capacity, 0, FIRST_BLOCK

    def get_seq_length(self) -> int:
        """Number of positions written."""
        return self.length

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        """Appends keys and values [B, heads, L, D]. Returns views of all positions written."""
        # Under autocast, rotary embeddings return float32 keys, and attention would cast all of them for every token.
        key_states = key_states.to(value_states.dtype)
        if not self.is_initialized:  # the prompt: `reorder_cache` allocates the buffers for the final number of rows
            self.dtype, self.device, self.length = key_states.dtype, key_states.device, key_states.shape[2]
            self.keys, self.values, self.is_initialized = key_states, value_states, True
            return key_states, value_states
        at, end = self.length, self.length + key_states.shape[2]
        if end > self.keys.shape[2]:
            self._move(None, at, end)
        self.length = end
        self.keys[:, :, at:end] = key_states
        self.values[:, :, at:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps, drops or repeats rows: the new row i is the old row `beam_idx[i]`."""
        self._move(beam_idx, self.length, self.length + 1)

    def _move(self, rows: Tensor | None, written: int, need: int) -> None:
        """Copies `written` positions of all rows, or of `rows`, into new buffers with room for `need` positions."""
        size = self.keys.shape[2]
        if need > size:
            size, self.spare = max(need, min(self.capacity, need + self.spare)), 2 * self.spare
        for name in ("keys", "values"):
            old = getattr(self, name)[:, :, :written]
            old = old if rows is None else old.index_select(0, rows)
            new = old.new_empty(*old.shape[:2], size, old.shape[3])
            new[:, :, :written] = old
            setattr(self, name, new)


class SharedLayer(GrowingLayer):
    """One layer: keys and values of the prompts [P, heads, L, D], and growing buffers for those of the completions."""

    prompt_keys: Tensor
    prompt_values: Tensor
    prompt_length = 0
    places: Places

    def get_seq_length(self) -> int:
        """Number of positions written, including the prompt."""
        return self.prompt_length + self.length

    def update(self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        """Appends keys and values. The first call stores the prompts; later calls return only the completions."""
        if not self.prompt_length:
            # Contiguous, or each token's matrix product would copy them.
            self.prompt_keys = key_states.to(value_states.dtype).contiguous()
            self.prompt_values = value_states.contiguous()
            self.prompt_length = key_states.shape[2]
            return key_states, value_states
        keys, values = super().update(key_states, value_states)
        keys.layer = self  # type: ignore[attr-defined]  # for `attend`
        return keys, values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps, drops or repeats completions."""
        if self.length:
            super().reorder_cache(beam_idx)


class Places:
    """The rows of a batch grouped by prompt. Every prompt has the same number of slots, that of the prompt with the most
    completions. prompt_of: of each row [rows]. bias: added to the attention scores of the prompts' positions [P, L].
    """

    def __init__(self, prompt_of: Tensor, bias: Tensor | None) -> None:
        counts = prompt_of.bincount()
        self.prompts, self.each = len(counts), int(counts.max())
        order = prompt_of.argsort(stable=True)
        number = torch.arange(len(prompt_of)) - (counts.cumsum(0) - counts)[prompt_of[order]]  # within a prompt
        self.place = torch.empty_like(prompt_of)  # slot of each row
        self.place[order] = prompt_of[order] * self.each + number
        self.row = prompt_of.new_zeros(self.prompts * self.each)  # row in each slot; arbitrary in an empty slot
        self.row[self.place] = torch.arange(len(prompt_of))
        self.in_order = len(self.row) == len(prompt_of) and torch.equal(self.row, self.place)
        self.bias = None if bias is None else bias[:, None, None]

    def by_prompt(self, x: Tensor) -> Tensor:
        """[rows, heads, g, D] -> [P, heads, each * g, D]."""
        x = x if self.in_order else x.index_select(0, self.row)
        return x.unflatten(0, (self.prompts, self.each)).transpose(1, 2).flatten(2, 3)

    def by_row(self, x: Tensor) -> Tensor:
        """[P, heads, each * g, D] -> [rows, heads, g, D]."""
        x = x.unflatten(2, (self.each, -1)).transpose(1, 2).flatten(0, 1)
        return x if self.in_order else x.index_select(0, self.place)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one new token per row, query [B, H, 1, D], as an attention function of transformers.

    The mask is ignored, since the layer knows its padding. Keys that are not from a shared cache get the model's own
    attention. Raises NotImplementedError for other kinds of attention.
    """
    layer: SharedLayer | None = getattr(key, "layer", None)
    odd = [name for name in ("softcap", "s_aux", "position_bias") if more.get(name) is not None]
    if layer is None and not odd:  # a plain pass in another thread
        own = AttentionInterface()[OWN_ATTENTION if more.get("forest") is not None else "sdpa"]
        return own(module, query, key, value, attention_mask, scaling=scaling, **more)
    if layer is None or query.shape[2] != 1 or odd:
        raise NotImplementedError(f"{type(module).__name__} attends in a way of its own: {odd}")
    places, prompt_length = layer.places, layer.prompt_length
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q = query.unflatten(1, (key.shape[1], -1)).squeeze(3) * scale
    prompt = places.by_prompt(q) @ layer.prompt_keys.transpose(2, 3)  # [P, heads, each * g, L]
    if places.bias is not None:
        prompt = prompt + places.bias
    scores = torch.cat([places.by_row(prompt), q @ key.transpose(2, 3)], -1)  # [B, heads, g, all positions]
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    of_prompt = places.by_prompt(weights[..., :prompt_length]) @ layer.prompt_values
    out = weights[..., prompt_length:] @ value + places.by_row(of_prompt)
    return out.reshape(query.shape[0], 1, query.shape[1], -1), None


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


_lock = threading.Lock()
_within: dict[int, tuple[int, str]] = {}  # config id -> number of threads inside, and the implementation to restore


@contextmanager
def shared_attention(config: Any) -> Iterator[None]:
    """Context in which the model of this configuration decodes with `attend`. Other passes keep their own attention."""
    with _lock:
        count, before = _within.get(id(config), (0, config._attn_implementation))
        _within[id(config)] = count + 1, before
        config._attn_implementation = NAME
    try:
        yield
    finally:
        with _lock:
            count, before = _within.pop(id(config))
            if count > 1:
                _within[id(config)] = count - 1, before
            else:
                config._attn_implementation = before
