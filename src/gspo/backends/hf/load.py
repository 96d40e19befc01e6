"""Loads a causal language model and prepares it for exact scoring: sources of randomness are switched off, and trial forward
passes check the rest.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, masking_utils
from transformers.utils.logging import disable_progress_bar

from gspo.backends.hf import experts
from gspo.backends.hf.files import check_weights, load_error, outline, processor_files, read_config, read_outline
from gspo.backends.hf.gguf import converted, missing_tensors
from gspo.backends.hf.model import DTYPES, OWN_ATTENTION, HFModel, example_token_ids, not_allclose, trial_forest, windows
from gspo.backends.hf.quantized_weights import Packed
from gspo.config.import_function import pick_device
from gspo.config.policy import ModelConfig
from gspo.distributed.ranks import is_loss
from gspo.learner.layout import may_look
from gspo.runs.machine import warn_if_slow

logger = logging.getLogger(__name__)
disable_progress_bar()  # for loading and saving weights: the run has its own
M = TypeVar("M", bound=HFModel)


def load_model(cfg: ModelConfig) -> HFModel:
    """Loads the model and tokenizer that `cfg` names. Raises ValueError with key, value and remedy."""
    return wrap_model(*read_weights(cfg), cfg)


def read_weights(cfg: ModelConfig, **more: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Loads model and tokenizer with transformers, unprepared. more: further arguments of `from_pretrained`."""
    cfg = converted(cfg)
    model_outline, path = read_outline(cfg), cfg.path
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    options: dict[str, Any] = {"config": model_outline.config, "dtype": DTYPES[cfg.dtype], "output_loading_info": True}
    options |= {"revision": cfg.revision, "trust_remote_code": cfg.trust_remote_code} | more
    # use_safetensors = None falls back to pickled weights. Mismatched shapes are reported below with a clearer message.
    options |= {"use_safetensors": None if cfg.allow_pickle else True, "ignore_mismatched_sizes": True}
    try:
        try:
            model, info = from_pretrained(path, **options, attn_implementation=cfg.attention)
        except ValueError as error:
            if cfg.attention != "sdpa" or "scaled_dot_product_attention" not in str(error):
                raise
            logger.warning("%s has no sdpa attention: using eager attention, which is slower", cfg.path)
            model, info = from_pretrained(path, **options, attn_implementation="eager")
    except Exception as error:  # transformers raises many exception types
        if is_loss(error):
            raise
        raise ValueError(load_error(cfg, error)) from error
    if problem := missing_tensors(info):
        what = type(model).__name__
        raise ValueError(f"model.path = {cfg.path!r}: the weights do not fit {what}: {problem}. Is it a causal model?")
    return model, model_outline.tokenizer


def without_weights(cfg: ModelConfig) -> PreTrainedModel:
    """The model that `cfg` names, on the meta device, from config.json alone. Raises ValueError if it cannot be built."""
    config = read_config(cfg)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=DTYPES[cfg.dtype], trust_remote_code=cfg.trust_remote_code)
    except Exception as error:  # transformers raises many exception types
        raise ValueError(load_error(cfg, error)) from error


def wrap_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cfg: ModelConfig | None = None) -> HFModel:
    """Prepares a loaded model for exact scoring, in place: no dropout, router noise or auxiliary loss. Without `cfg` the
    settings are the defaults, and the model is not moved to a device and dtype. Raises ValueError if tokenizer and model do
    not fit together, and RuntimeError if trial forward passes show that the model cannot be scored exactly.
    """
    if cfg is not None:
        move(model, pick_device(cfg.device), DTYPES[cfg.dtype])
        key, remedy = ("autocast", "auto") if cfg.dtype == "float32" else ("dtype", "float32")
        products = autocast_type(cfg.autocast, model.device.type, model.dtype) or model.dtype
        warn_if_slow(f'model.{key} = "{getattr(cfg, key)}"', f'"{remedy}"', products, model.device)
    return ready(HFModel, model, tokenizer, cfg or ModelConfig())


def move(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
    """Moves a model to a device and its weights to a dtype, in place, as `from_pretrained` reads them. What transformers
    keeps in float32 stays so: the bias that chooses experts, and buffers that no checkpoint holds, such as rotary
    frequencies.
    """
    kept = tuple(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    saved = model.state_dict().keys()
    named = [(name, x) for name, x in (*model.named_parameters(), *model.named_buffers()) if x.is_floating_point()]
    narrowed = {id(x) for name, x in named if name in saved and not any(part in name for part in kept)}
    # One by one, as in nn.Module.to: a device may not hold all of the wider weights.
    model._apply(lambda x: x.to(device, dtype if id(x) in narrowed else x.dtype))


def ready(kind: type[M], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cfg: ModelConfig) -> M:
    """`wrap_model` for a model already on its device and in its dtype. kind: the HFModel class to return."""
    if patches := sys.modules.get("art.transformers.patches"):  # `import art` replaces it by one for transformers 4
        masking_utils._preprocess_mask_arguments = patches._preprocess_mask_arguments
    if model.device.type == "cuda":  # cuDNN would build a plan for each shape, and shapes change with every micro-batch
        torch.backends.cuda.enable_cudnn_sdp(False)
    outline(model, tokenizer)
    check_weights(model)
    _make_deterministic(model)
    autocast = autocast_type(cfg.autocast, model.device.type, model.dtype)
    _choose_experts(model, cfg.expert_kernels, autocast, kind.sharded)
    wrapped = kind(model, tokenizer, autocast)
    logger.debug(f"{type(model).__name__} on {model.device} in {model.dtype}: {wrapped.attention} attention")
    check_end(wrapped)
    _make_saveable(model.generation_config)
    wrapped.processor = processor_files(model)
    with torch.no_grad(), wrapped.evaluating():
        _check_logits(wrapped)
        wrapped.has_full_attention = _has_full_attention(wrapped)
    return wrapped


def check_end(model: HFModel) -> None:
    """Raises ValueError if no token ends a completion."""
    if not model.stop_ids:
        raise ValueError(
            "neither the tokenizer nor the model's generation config names an end-of-sequence token, so a completion could "
            "never end: set the tokenizer's eos_token"
        )


def autocast_type(asked: str, device: str, weights: torch.dtype) -> torch.dtype | None:
    """Dtype of the matrix products under model.autocast = `asked`; None: the dtype of the weights. "auto" means bfloat16 on
    the device type "cuda" only. Only float32 weights are autocast.
    """
    narrow = asked == "bfloat16" or (asked == "auto" and device == "cuda")
    return torch.bfloat16 if narrow and weights == torch.float32 else None


def _make_deterministic(model: PreTrainedModel) -> None:
    """Sets dropout and router noise to 0, so that training mode scores like evaluation mode. Disables auxiliary losses."""
    configs = [model.config, model.config.get_text_config()]
    for holder in [*configs, *model.modules()]:
        for name, value in list(vars(holder).items()):
            if ("drop" in name or "jitter" in name) and isinstance(value, float) and value:
                setattr(holder, name, 0.0)
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0
    for holder in [*configs, model]:
        if hasattr(holder, "output_router_logits"):  # without them there is no such loss, whatever its coefficient
            holder.output_router_logits = False


def _make_saveable(config: Any) -> None:
    """Resets what transformers refuses to save in a generation config, such as a temperature without do_sample: it matters
    only to `generate` of transformers. Raises ValueError for what cannot be reset.
    """
    while True:
        try:
            return config.validate(strict=True)
        except ValueError as error:
            text = str(error)
        names = re.findall(r"^- `(\w+)`", text, re.MULTILINE) or re.findall(r"`(\w+)`", text)[:1]
        if all(getattr(config, name, None) is None for name in names):
            raise ValueError(f"the model's generation_config.json: {' '.join(text.split())} Mend it, or remove it")
        for name in names:
            setattr(config, name, None)


def _choose_experts(model: PreTrainedModel, kernel: str, autocast: torch.dtype | None, gathered: bool) -> None:
    """Sets the expert kernels of a mixture of experts. gathered: shards are all-gathered in autocast's dtype."""
    if not model._can_set_experts_implementation():
        return
    if any(isinstance(module, Packed) for module in model.modules()):
        kernel = experts.NAME  # the only one that reads packed weights
    elif kernel == "auto":
        grouped = experts.NAME if experts.suits(model.device, autocast is not None) else "grouped_mm"
        rounded = autocast if gathered or grouped == experts.NAME else None
        kernel = grouped if _grouped_mm_runs(model.device, rounded or model.dtype) else "eager"
    model.set_experts_implementation(kernel)


def _grouped_mm_runs(device: torch.device, dtype: torch.dtype) -> bool:
    multiply = getattr(F, "grouped_mm", None) or torch._grouped_mm  # its first name
    rows, weight = (torch.ones(shape, device=device, dtype=dtype) for shape in ((4, 16), (2, 16, 16)))
    try:
        multiply(rows, weight, offs=torch.tensor([2, 4], device=device, dtype=torch.int32))
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _check_logits(model: HFModel) -> None:
    """Raises RuntimeError unless our logits match the model's own and training mode gives the same hidden states."""
    tokens, name = example_token_ids(model, 5), type(model.model).__name__
    hidden = model.hidden(input_ids=tokens)
    ours = model.logits(hidden)
    with model.precision():
        own = model.model(input_ids=tokens, use_cache=False).logits
    if not own.isfinite().all():
        raise RuntimeError(
            f"{name} gives logits that are not finite, though its weights are: these are damaged, or too large for "
            f'{model.compute_dtype} (the widest range have model.dtype = "float32" and model.autocast = "none")'
        )
    if not_allclose(model, ours, own):
        raise RuntimeError(
            f"{name} treats its logits in a way that gspo does not know: they differ from its head's by up to "
            f"{(ours - own.float()).abs().max():.3g}, so log-probabilities would be wrong"
        )
    model.model.train()
    if not_allclose(model, model.hidden(input_ids=tokens), hidden):
        raise RuntimeError(
            f"{name} computes other hidden states in training than in evaluation mode, though dropout and router noise are "
            "0: sampled and trained likelihoods would differ"
        )


def _has_full_attention(model: HFModel) -> bool:
    """Whether each layer has full attention, or a window as long as the context, and a prompt with two completions in one
    row under a 4D mask gives the states of two plain rows.
    """
    layer_windows, longest = windows(model.config), getattr(model.config, "max_position_embeddings", None) or float("inf")
    if layer_windows is None or any(window and window < longest for window in layer_windows):
        return False
    if "position_ids" not in model.inputs or model.attention not in ("sdpa", "eager", OWN_ATTENTION):
        return False  # flash kernels take no such mask
    (forest, paths), tokens = trial_forest(3, 2), example_token_ids(model, 7)
    mask, position = (x.to(model.device) for x in (may_look(forest)[None, None], forest.position[None]))
    try:
        model.model.eval()
        packed = model.hidden(input_ids=tokens, position_ids=position, attention_mask=mask)[0]
        plain = [model.hidden(input_ids=tokens[:, path])[0, -1] for path in paths]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return not any(not_allclose(model, packed[path[-1]], states) for path, states in zip(paths, plain))
