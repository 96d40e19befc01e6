"""Loading a causal language model, and making it ready for exact scoring: what could make a difference is switched off, and
the rest is tried.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, masking_utils
from transformers.utils.logging import disable_progress_bar

from gspo.backends.hf import experts, fused
from gspo.backends.hf.files import check_weights, load_error, outline, read_config, read_outline
from gspo.backends.hf.model import DTYPES, OWN_ATTENTION, HFModel, example_token_ids, not_allclose, windows
from gspo.backends.hf.quantized_weights import Packed
from gspo.config.import_function import pick_device
from gspo.config.policy import ModelConfig
from gspo.distributed.ranks import is_loss

log = logging.getLogger(__name__)
disable_progress_bar()  # of loading and saving weights: the run has its own
M = TypeVar("M", bound=HFModel)


def load_model(cfg: ModelConfig) -> HFModel:
    """The model and tokenizer that `cfg` names. Raises ValueError with key, value and remedy."""
    return wrap_model(*read_weights(cfg), cfg)


def read_weights(cfg: ModelConfig, **more: Any) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model as transformers loads it, and its tokenizer. more: further arguments of `from_pretrained`."""
    model_outline, path = read_outline(cfg), cfg.path
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    options: dict[str, Any] = {"config": model_outline.config, "dtype": DTYPES[cfg.dtype], "output_loading_info": True}
    options |= {"revision": cfg.revision, "trust_remote_code": cfg.trust_remote_code} | more
    # None takes pickled weights where there are no others. Tensors of another shape are refused below, in our words.
    options |= {"use_safetensors": None if cfg.allow_pickle else True, "ignore_mismatched_sizes": True}
    try:
        try:
            model, info = from_pretrained(path, **options, attn_implementation=cfg.attention)
        except ValueError as error:
            if cfg.attention != "sdpa" or "scaled_dot_product_attention" not in str(error):
                raise
            log.warning("%s has no sdpa attention: using eager attention, which is slower", cfg.path)
            model, info = from_pretrained(path, **options, attn_implementation="eager")
    except Exception as error:  # transformers raises many kinds here
        if is_loss(error):
            raise
        raise ValueError(load_error(cfg, error)) from error
    missing = sorted([*info["missing_keys"], *(str(key[0]) for key in info["mismatched_keys"])])
    if missing:
        raise ValueError(
            f"model.path = {cfg.path!r}: the weights do not fit {type(model).__name__}: {len(missing)} "
            f"tensors are missing or of another shape ({', '.join(missing[:3])}, ...). Is it a causal model?"
        )
    return model, model_outline.tokenizer


def without_weights(cfg: ModelConfig) -> PreTrainedModel:
    """The model that `cfg` names, on the meta device: only config.json is read. Raises ValueError where transformers cannot
    make it.
    """
    config = read_config(cfg)
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, dtype=DTYPES[cfg.dtype], trust_remote_code=cfg.trust_remote_code)
    except Exception as error:  # transformers raises many kinds here
        raise ValueError(load_error(cfg, error)) from error


def wrap_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cfg: ModelConfig | None = None) -> HFModel:
    """An already loaded model, made ready: no dropout, no router noise, no auxiliary loss; checked by forward
    passes.

    The model is changed in place: moved to the device and cast to the dtype of `cfg`, where it is given. Raises
    ValueError where tokenizer and model do not fit, RuntimeError where the model cannot be scored exactly.
    """
    if cfg is not None:
        nn.Module.to(model, device=pick_device(cfg.device), dtype=DTYPES[cfg.dtype])
    return ready(HFModel, model, tokenizer, cfg or ModelConfig())


def ready(kind: type[M], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cfg: ModelConfig) -> M:
    """`wrap_model` of a model that has its place and its dtype, as an HFModel of this kind."""
    undo_patches()
    if model.device.type == "cuda":
        _attend_without_plans()
    outline(model, tokenizer)
    check_weights(model)
    _make_deterministic(model)
    autocast = autocast_type(cfg.autocast, model.device.type, model.dtype)
    _choose_experts(model, cfg.experts, autocast, kind.sharded)
    wrapped = kind(model, tokenizer, autocast)
    wrapped.kernels = by_kernels(cfg, model.device.type, wrapped.compute_dtype) and fused.place(model)
    if not wrapped.stop_ids:
        raise ValueError(
            "neither the tokenizer nor the model's generation config names an end-of-sequence token, so a "
            "completion could never end: set the tokenizer's eos_token"
        )
    try:
        model.generation_config.validate(strict=True)
    except ValueError:  # it could not be saved; sampling settings without sampling are the usual reason
        model.generation_config.do_sample = True
    was_training = model.training
    with torch.no_grad():
        _check_logits(wrapped)
        wrapped.has_full_attention = _all_layers_full(wrapped.config) and _mask_describes(wrapped)
    model.train(was_training)
    return wrapped


def _attend_without_plans() -> None:
    """From here on torch leaves cuDNN's attention out, in the whole process: a backward pass may attend again. It plans
    for each shape, and shapes are new all the time: of each micro-batch, and of the cache at each token.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def autocast_type(asked: str, device: str, weights: torch.dtype) -> torch.dtype | None:
    """Type of the matrix products by model.autocast on such a device; None: that of the weights, which half ones keep."""
    narrow = asked == "bfloat16" or (asked == "auto" and device == "cuda")
    return torch.bfloat16 if narrow and weights == torch.float32 else None


def by_kernels(cfg: ModelConfig, device: str, products: torch.dtype) -> bool:
    """Whether a model on such a device, with products in this type, is to have compiled kernels."""
    return cfg.kernels == "auto" and device == "cpu" and products == torch.float32


def _make_deterministic(model: PreTrainedModel) -> None:
    """Training mode must score as evaluation mode does, and no loss but ours may be added."""
    configs = [model.config, model.config.get_text_config()]
    for holder in [*configs, *model.modules()]:
        for name, value in list(vars(holder).items()):
            if ("drop" in name or "jitter" in name) and isinstance(value, float) and value:
                setattr(holder, name, 0.0)
        if isinstance(holder, nn.modules.dropout._DropoutNd):
            holder.p = 0.0
    for holder in [*configs, model]:
        for name, off in (("output_router_logits", False), ("router_aux_loss_coef", 0.0)):
            if hasattr(holder, name):
                setattr(holder, name, off)


def _choose_experts(model: PreTrainedModel, kernel: str, autocast: torch.dtype | None, gathered: bool) -> None:
    """Sets the expert kernels of a mixture of experts. gathered: in autocast's type, from shards."""
    if not model._can_set_experts_implementation():
        return
    if any(isinstance(module, Packed) for module in model.modules()):
        kernel = experts.NAME  # no other reads them
    elif kernel == "auto":
        grouped = experts.NAME if experts.suits(model.device, autocast is not None) else "grouped_mm"
        rounded = autocast if gathered or grouped == experts.NAME else None
        kernel = grouped if _grouped_mm_runs(model.device, rounded or model.dtype) else "eager"
    model.set_experts_implementation(kernel)


def _grouped_mm_runs(device: torch.device, dtype: torch.dtype) -> bool:
    multiply = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if multiply is None:
        return False
    rows, weight = (
        torch.ones(4, 16, device=device, dtype=dtype),
        torch.ones(2, 16, 16, device=device, dtype=dtype),
    )
    try:
        multiply(rows, weight, offs=torch.tensor([2, 4], device=device, dtype=torch.int32))
    except (RuntimeError, NotImplementedError):
        return False
    return True


def _check_logits(model: HFModel) -> None:
    """Our logits must be the model's own, and the same in training as in evaluation mode."""
    tokens, name = example_token_ids(model, 5), type(model.model).__name__
    model.model.eval()
    hidden = model.hidden(input_ids=tokens)
    ours = model.logits(hidden)
    with model.precision():
        own = model.model(input_ids=tokens, use_cache=False).logits
    if not own.isfinite().all():
        raise RuntimeError(
            f"{name} gives logits that are not finite, though its weights are: they are too large for {model.compute_dtype} "
            '(model.dtype = "float32" and model.autocast = "none" have the widest range), or the weights are damaged'
        )
    if not_allclose(model, ours, own):
        raise RuntimeError(
            f"{name} treats its logits in a way that gspo does not know: its own differ by up to "
            f"{(ours - own.float()).abs().max():.3g} from its head's, scale and soft-cap included. Log-"
            "probabilities would be wrong, so this architecture is refused"
        )
    model.model.train()
    if not_allclose(model, model.hidden(input_ids=tokens), hidden):
        raise RuntimeError(
            f"{name} computes other hidden states in training than in evaluation mode, though dropout and "
            "router noise are 0: sampled and trained likelihoods would differ"
        )


def _all_layers_full(config: Any) -> bool:
    """Whether no layer has a window that hides anything."""
    layer_windows, longest = windows(config), getattr(config, "max_position_embeddings", None)
    return layer_windows is not None and all(
        not window or (longest is not None and window >= longest) for window in layer_windows
    )


def _mask_describes(model: HFModel) -> bool:
    """Tries it: a prompt with two completions in one row under a 4D mask must give what two plain rows give."""
    if "position_ids" not in model.inputs or model.attention not in ("sdpa", "eager", OWN_ATTENTION):
        return False  # flash kernels take no such mask
    tokens, place = example_token_ids(model, 7), torch.arange(7, device=model.device)
    last = torch.tensor([6, 6, 6, 4, 4, 6, 6], device=model.device)
    mask = (place[None] <= place[:, None]) & (place[:, None] <= last[None])
    position = torch.tensor([[0, 1, 2, 3, 4, 3, 4]], device=model.device)
    try:
        model.model.eval()
        packed = model.hidden(input_ids=tokens, position_ids=position, attention_mask=mask[None, None])[0]
        plain = [model.hidden(input_ids=tokens[:, path])[0, -1] for path in ([0, 1, 2, 3, 4], [0, 1, 2, 5, 6])]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return not (not_allclose(model, packed[4], plain[0]) or not_allclose(model, packed[6], plain[1]))


def undo_patches() -> None:
    """Puts back a function of transformers that `import art` (openpipe-art) replaces by one for transformers 4. No model of
    transformers 5 runs with that.
    """
    patches = sys.modules.get("art.transformers.patches")
    if patches is not None:
        masking_utils._preprocess_mask_arguments = patches._preprocess_mask_arguments
