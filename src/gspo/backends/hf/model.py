"""A causal language model of transformers, made ready for exact scoring (load.py): forward, save."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo.backends.hf.files import KEPT_KEYS, Outline, embedded
from gspo.backends.hf.head import Head
from gspo.backends.hf.layers import Layers

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Largest accepted difference between two ways to the same numbers, as a share of the largest of them.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
OWN_ATTENTION = "gspo"  # attention.py; without a forest it is sdpa
T = TypeVar("T")


@dataclass
class HFModel:
    """A model and its tokenizer, as `load_model` and `wrap_model` make them.

    autocast: type of the matrix products (None: that of the weights). has_full_attention: every layer is
    plain full attention, so that a 4D boolean mask describes it. logit_scale: what the head's output is
    multiplied by (Cohere, Falcon-H1; Granite divides). logit_cap: the bound c of logits that go through c
    tanh(logit / c) (Gemma), or None. kernels: whether small operations are by compiled kernels (fused/).
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    autocast: torch.dtype | None = None
    has_full_attention: bool = False
    kernels: bool = False
    adapted: ClassVar[bool] = False  # whether adapters alone are trained
    sharded: ClassVar[bool] = False  # whether this process holds a part of the weights alone
    config: Any = field(init=False, repr=False)
    body: nn.Module = field(init=False, repr=False)
    inputs: frozenset[str] = field(init=False, repr=False)
    logit_scale: float = field(init=False)
    logit_cap: float | None = field(init=False)

    def __post_init__(self) -> None:
        self.config = config = self.model.config.get_text_config()
        self.body = _body(self.model)
        self.inputs = frozenset(inspect.signature(self.body.forward).parameters)
        scale = getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None) or 1.0
        self.logit_scale = float(scale) / float(getattr(config, "logits_scaling", None) or 1.0)
        self.logit_cap = getattr(config, "final_logit_softcapping", None)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def attention(self) -> str:
        """The attention implementation in use."""
        return self.config._attn_implementation

    @property
    def compute_dtype(self) -> torch.dtype:
        """Type of the matrix products."""
        return self.autocast or self.model.dtype

    def precision(self) -> AbstractContextManager:
        """The autocast context. Around a loop it keeps the cast weights from one forward pass to the next."""
        return torch.autocast(self.device.type, self.autocast) if self.autocast else nullcontext()

    def run(self, work: Callable[[], T]) -> T:
        """What `work`, a forward pass of body and head, returns. (Shards are gathered around it.)"""
        return work()

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The weights by name, as they are trained."""
        return self.model.named_parameters()

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """The weights by name, each whole."""
        return self.named_parameters()

    def layers(self) -> Iterator[dict[str, Tensor]]:
        """What an engine reads, a layer at a time: whole weights by the names of a Hugging Face folder, most in the type of
        the matrix products (layers.py).
        """
        weights = dict(self.named_parameters())
        layers = Layers(self.model, weights, self.compute_dtype)
        for number, names in enumerate(layers.names):
            here = {name: weights[name].detach().to(layers.types[name]) for name in names}
            yield layers.named(number, here, self.device)

    def prove(self, trained: Iterable[nn.Parameter]) -> None:
        """Whole weights are what they are. (Shards are checked.)"""

    def hidden(self, **inputs: Any) -> Tensor:
        """Last hidden states [B, L, H], normalised, of the model without its head.

        `inputs` are what the model takes: input_ids, attention_mask, position_ids, past_key_values (which
        turns the cache on). A 4D boolean mask [B, 1, L, L'] is True where a token may be looked at.
        """
        cache = inputs.get("past_key_values")
        inputs.setdefault("use_cache", cache is not None)
        if cache is not None and "past_key_values" not in self.inputs:
            inputs["cache_params"] = inputs.pop("past_key_values")  # its name in state-space models
        mask = inputs.get("attention_mask")
        if mask is not None and mask.ndim == 4 and mask.dtype == torch.bool and self.attention == "eager":
            least = torch.finfo(self.compute_dtype).min  # eager attention adds its mask to the scores
            inputs["attention_mask"] = torch.zeros_like(mask, dtype=self.compute_dtype).masked_fill_(~mask, least)
        with self.precision():
            return self.body(**inputs).last_hidden_state

    @property
    def head(self) -> Head:
        """What makes logits of hidden states, as the model's own forward pass does, but in float32 whatever the weights."""
        linear = self.model.get_output_embeddings()
        return Head(linear.weight, getattr(linear, "bias", None), self.logit_scale, self.logit_cap)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of hidden states [..., H], without gradient."""
        return self.head.logits(hidden)

    @property
    def context_length(self) -> int | None:
        """Most tokens the model can read; None where it has no such limit."""
        return Outline(self.tokenizer, self.config).context_length

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion: those of the generation config and the tokenizer's."""
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        ids = list(eos) if isinstance(eos, (list, tuple)) else [eos]
        return tuple(dict.fromkeys(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None))

    @property
    def pad_id(self) -> int:
        """The padding token; the first stop token where there is none."""
        pad = self.tokenizer.pad_token_id
        return self.stop_ids[0] if pad is None else pad

    def load(self, folder: str | Path) -> None:
        """Take over the weights of a model that `save` wrote."""
        saved = type(self.model).from_pretrained(folder, dtype=self.model.dtype)
        self.model.load_state_dict(saved.state_dict())

    def save(self, folder: str | Path) -> None:
        """Write weights (safetensors), configuration and tokenizer, as `from_pretrained` reads them."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save_whole(self, folder: str | Path, merged: bool = True) -> None:
        """Write a whole model, whose adapters, where it has any, are `merged` in or left out."""
        self.save(folder)


def _body(model: PreTrainedModel) -> nn.Module:
    """The model without its head (of a multimodal one: the text part)."""
    for body in (model.get_decoder(), model.base_model, getattr(model, "model", None)):
        if body is not None and body is not model:
            return body
    raise RuntimeError(f"{type(model).__name__} is no body with a head: its hidden states cannot be reached")


def example_token_ids(model: HFModel, count: int) -> Tensor:
    """Some token ids [1, count] that the model has, to try it with."""
    return (torch.arange(count, device=model.device)[None] * 7 + 3) % embedded(model.model)


def tolerance(model: HFModel) -> float:
    """The largest relative difference that rounding explains: in the model's precision, or in that of an autocast of the
    caller's around it.
    """
    kind = model.device.type
    around = torch.get_autocast_dtype(kind) if not model.autocast and torch.is_autocast_enabled(kind) else None
    return TOLERANCE[around or model.compute_dtype]


def not_allclose(model: HFModel, a: Tensor, b: Tensor) -> bool:
    """Whether a differs from b by more than rounding explains."""
    limit = tolerance(model) * (b.float().abs().max() + 1e-6)
    return not bool((a.float() - b.float()).abs().max() <= limit)


def windows(config: Any) -> list[int | None] | None:
    """The sliding window of each layer by the configuration, in tokens, None where a layer has none. None for a model with
    layers of another kind, or whose queries are scaled by their place in the row, or who look at some keys of the row only.
    """
    local = "local" in (getattr(config, "attention_layers", None) or ())  # GPT-Neo's, of a window with another name
    if local or any(getattr(config, name, None) for name in ("attn_temperature_tuning", KEPT_KEYS)):
        return None
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return [window if getattr(config, "use_sliding_window", True) else None] * config.num_hidden_layers
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    return [window if kind == "sliding_attention" else None for kind in kinds]
