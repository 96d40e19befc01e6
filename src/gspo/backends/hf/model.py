"""A transformers causal language model prepared for exact scoring (load.py): forward pass, load and save."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo.backends.hf.files import KEPT_KEYS, Outline, embedding_rows
from gspo.backends.hf.head import Head
from gspo.backends.hf.layers import Layers
from gspo.types import Forest

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Largest accepted difference between two computations of the same tensor, relative to its largest absolute value.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
OWN_ATTENTION = "gspo"  # attention.py; same as sdpa when no forest is passed
T = TypeVar("T")


@dataclass
class HFModel:
    """A model and its tokenizer, as returned by `load_model` and `wrap_model`.

    Attributes:
        autocast: Dtype of the matrix products. None: the dtype of the weights.
        has_full_attention: Every layer is plain full attention, so a 4D boolean mask describes it.
        logit_scale: Factor on the head's output (Cohere, Falcon-H1; Granite divides).
        logit_cap: Soft-cap c of the logits, c tanh(logit / c) (Gemma), or None.
        processor: Files of a multimodal model's processor, by name.
        most: Tokens that whatever else reads its conversations can take; None without a limit.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    autocast: torch.dtype | None = None
    has_full_attention: bool = False
    processor: dict[str, bytes] = field(default_factory=dict, repr=False)
    most: int | None = field(default=None, init=False)
    adapted: ClassVar[bool] = False  # whether only adapters are trained
    sharded: ClassVar[bool] = False  # whether this process holds only a shard of the weights
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
        """The device of the weights."""
        return self.model.device

    @property
    def attention(self) -> str:
        """The attention implementation in use."""
        return self.config._attn_implementation

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of the matrix products."""
        return self.autocast or self.model.dtype

    def precision(self) -> AbstractContextManager:
        """The autocast context. Put around a loop, it caches cast weights across forward passes; not if they are sharded,
        since each rank would hold the full weights of all layers.
        """
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self.autocast, cache_enabled=False if self.sharded else None)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context in which the model is in evaluation mode."""
        was_training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(was_training)

    def run(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, a forward pass of body and head. A sharded model gathers its weights around it."""
        return work()

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The weights by name, as the optimizer trains them."""
        return self.model.named_parameters()

    def tensors(self) -> Iterable[tuple[str, Tensor]]:
        """The weights by name, unsharded."""
        return self.named_parameters()

    def layers(self) -> Iterator[dict[str, Tensor]]:
        """The weights for an inference engine, layer by layer: unsharded, under their names in a Hugging Face folder, most
        of them in the dtype of the matrix products (layers.py).
        """
        weights = dict(self.named_parameters())
        layers = Layers(self.model, weights, self.compute_dtype)
        for number, names in enumerate(layers.names):
            here = {name: weights[name].detach().to(layers.types[name]) for name in names}
            yield layers.named(number, here, self.device)

    def prove(self, trained: Iterable[nn.Parameter]) -> None:
        """Does nothing: without shards there is no second copy to check."""

    def hidden(self, **inputs: Any) -> Tensor:
        """Last hidden states [B, L, H], after the final norm and before the head.

        `inputs` go to the model: input_ids, attention_mask, position_ids, past_key_values (which turns the cache on). A 4D
        boolean mask [B, 1, L, L'] is True at the keys that a token may attend to.
        """
        cache = inputs.get("past_key_values")
        inputs.setdefault("use_cache", cache is not None)
        if cache is not None and "past_key_values" not in self.inputs:
            inputs["cache_params"] = inputs.pop("past_key_values")  # its name in state-space models
        mask = inputs.get("attention_mask")
        if mask is not None and mask.ndim == 4 and mask.dtype == torch.bool and self.attention == "eager":
            least = torch.finfo(self.compute_dtype).min  # eager attention takes an additive mask
            inputs["attention_mask"] = torch.zeros_like(mask, dtype=self.compute_dtype).masked_fill_(~mask, least)
        with self.precision():
            return self.body(**inputs).last_hidden_state

    @property
    def head(self) -> Head:
        """Computes logits from hidden states like the model's own forward pass, but in float32 for any weight dtype."""
        linear = self.model.get_output_embeddings()
        return Head(linear.weight, getattr(linear, "bias", None), self.logit_scale, self.logit_cap)

    def on_head(self, states: Tensor, work: Callable[[Head, Tensor], T]) -> T:
        """Returns work(head, states). A sharded model gathers the head's weight around it."""
        return work(self.head, states)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of hidden states [..., H], without gradient."""
        return self.on_head(hidden, Head.logits)

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens that the model, and `most`, can read; None without such a limit."""
        limits = Outline(self.tokenizer, self.config).context_length, self.most
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion: those of the generation config and the tokenizer's."""
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        ids = list(eos) if isinstance(eos, (list, tuple)) else [eos]
        return tuple(dict.fromkeys(i for i in [*ids, self.tokenizer.eos_token_id] if i is not None))

    @property
    def pad_id(self) -> int:
        """The padding token, or the first stop token if the tokenizer has none."""
        pad = self.tokenizer.pad_token_id
        return self.stop_ids[0] if pad is None else pad

    def load(self, folder: str | Path) -> None:
        """Loads the weights of a model that `save` wrote."""
        saved = type(self.model).from_pretrained(folder, dtype=self.model.dtype)
        self.model.load_state_dict(saved.state_dict())

    def save(self, folder: str | Path, merged: bool = False) -> None:
        """Writes all files that `from_pretrained` reads; of a model with adapters these alone, unless they are `merged`."""
        self.model.save_pretrained(folder)
        self.save_rest(folder)

    def save_rest(self, folder: str | Path) -> None:
        """Writes the tokenizer, and a multimodal model's processor."""
        self.tokenizer.save_pretrained(folder)
        for name, data in self.processor.items():
            (Path(folder) / name).write_bytes(data)


def _body(model: PreTrainedModel) -> nn.Module:
    """The model without its head; for a multimodal model, its text part."""
    for body in (model.get_decoder(), model.base_model, getattr(model, "model", None)):
        if body is not None and body is not model:
            return body
    raise RuntimeError(f"{type(model).__name__} is no body with a head: its hidden states cannot be reached")


def example_token_ids(model: HFModel, count: int) -> Tensor:
    """Valid token ids [1, count] for trial runs of the model."""
    return (torch.arange(count, device=model.device)[None] * 7 + 3) % embedding_rows(model.model)


def trial_forest(prompt: int, completion: int) -> tuple[Forest, list[Tensor]]:
    """A prompt with two completions, of these many tokens, for trial runs; and the token indices of both paths."""
    size, fork = prompt + 2 * completion, prompt + completion
    tokens = torch.arange(size)
    last = torch.full((size,), size - 1)
    last[prompt:fork] = fork - 1
    parent, position = tokens - 1, tokens.clone()
    parent[fork] = prompt - 1
    position[fork:] -= completion
    return Forest(tokens, last, parent, position), [tokens[:fork], torch.cat([tokens[:prompt], tokens[fork:]])]


def tolerance(model: HFModel) -> float:
    """The largest relative difference that rounding explains, in the model's precision or that of a surrounding autocast."""
    kind = model.device.type
    around = torch.get_autocast_dtype(kind) if not model.autocast and torch.is_autocast_enabled(kind) else None
    return TOLERANCE[around or model.compute_dtype]


def not_allclose(model: HFModel, a: Tensor, b: Tensor) -> bool:
    """Whether a differs from b by more than rounding explains."""
    limit = tolerance(model) * (b.float().abs().max() + 1e-6)
    return not bool((a.float() - b.float()).abs().max() <= limit)


def windows(config: Any) -> list[int | None] | None:
    """The configured sliding window of each layer in tokens, None for a layer without one. Returns None for models with
    other kinds of layers, with position-dependent query scaling, or with attention to a selection of the keys.
    """
    local = "local" in (getattr(config, "attention_layers", None) or ())  # GPT-Neo names its window differently
    if local or any(getattr(config, name, None) for name in ("attn_temperature_tuning", KEPT_KEYS)):
        return None
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return [window if getattr(config, "use_sliding_window", True) else None] * config.num_hidden_layers
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    return [window if kind == "sliding_attention" else None for kind in kinds]
