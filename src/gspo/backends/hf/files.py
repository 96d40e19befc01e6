"""Finds and validates the files of a transformers model: configuration, tokenizer, weights, adapter."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file, extract_commit_hash

from gspo.backends.hf.gguf import converted, gguf_file
from gspo.config.import_function import pick_device
from gspo.config.local_model import ADAPTER, TOKENIZER_FILES, check_folder_exists, no_id
from gspo.config.policy import ModelConfig
from gspo.config.values import type_of
from gspo.distributed.ranks import local

T = TypeVar("T")
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
KEPT_KEYS = "keep_window_size"  # config key of models whose tokens attend to at most this many keys, chosen by the model
# Config keys, by model family, for the number of experts per token and the total number of experts.
EXPERT_KEYS = (
    ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
)


@dataclass(frozen=True)
class Outline:
    """What is known of a model before its weights are loaded: enough to build and check prompts."""

    tokenizer: PreTrainedTokenizerBase
    config: Any

    @property
    def context_length(self) -> int | None:
        """Maximum number of tokens for which a row's likelihood does not depend on other rows; None without a limit.

        Beyond some length, rotary embeddings of the types "longrope" and "dynamic" depend on the longest row of the pass,
        and so on when keys were cached. The same holds for a row with more keys than each token attends to (Doge).
        """
        config = self.config.get_text_config()
        limits = [getattr(config, name, None) for name in ("max_position_embeddings", KEPT_KEYS)]
        rotary = getattr(config, "rope_parameters", None) or {}
        for rope in (rotary, *rotary.values()):  # one for all layers, or one per layer type
            if isinstance(rope, dict) and rope.get("rope_type") in ("longrope", "dynamic"):
                limits.append(rope.get("original_max_position_embeddings"))
                limits.append(getattr(config, "original_max_position_embeddings", None))
        return min((limit for limit in limits if limit is not None), default=None)


def outline(model: Any, tokenizer: Any) -> Outline:
    """The outline of a loaded model. Raises ValueError if model or tokenizer are not from transformers, or do not match."""
    for name, value, kind in (("model", model, PreTrainedModel), ("tokenizer", tokenizer, PreTrainedTokenizerBase)):
        if not isinstance(value, kind):
            raise ValueError(f"{name}: expected one of transformers ({kind.__name__}), got {type_of(value)}")
    check_tokenizer(model, tokenizer)
    eos = getattr(model.generation_config, "eos_token_id", None)  # transformers checks that of config.json
    if not all(id is None or type(id) is int for id in (eos if isinstance(eos, (list, tuple)) else [eos])):
        raise ValueError(f"eos_token_id = {eos!r}: not a token's id, a number: correct the model's generation_config.json")
    return Outline(tokenizer, model.config)


def read_outline(cfg: ModelConfig) -> Outline:
    """The tokenizer and configuration of the model that `cfg` names. Raises ValueError for every problem that can be
    detected without loading the weights.
    """
    check_path(cfg)
    pick_device(cfg.device)
    cfg = converted(cfg)
    if _is_only_adapter(cfg.path):
        return of_base(cfg, read_outline)
    config = read_config(cfg)
    return Outline(load_tokenizer(cfg), config)


def read_config(cfg: ModelConfig) -> Any:
    """The config.json of the model that `cfg` names, or of a bare adapter's base model. Raises ValueError for problems."""
    check_folder(cfg)
    cfg = converted(cfg)
    if _is_only_adapter(cfg.path):
        return of_base(cfg, read_config)
    try:
        return AutoConfig.from_pretrained(cfg.path, revision=cfg.revision, trust_remote_code=cfg.trust_remote_code)
    except Exception as error:  # transformers raises many exception types
        raise ValueError(load_error(cfg, error)) from error


def commit_of(cfg: ModelConfig) -> str:
    """The commit hash of a model on the Hugging Face hub. Raises ValueError if there is no such model."""
    try:
        return str(extract_commit_hash(cached_file(cfg.path, "config.json", revision=cfg.revision), None))
    except Exception as error:  # transformers raises many exception types
        raise ValueError(load_error(cfg, error)) from error


def commit_of_tokenizer(name: str) -> str:
    """The commit hash of the tokenizer that model.tokenizer names. Raises ValueError if there is no such tokenizer."""
    try:
        return str(extract_commit_hash(cached_file(name, "tokenizer_config.json"), None))
    except Exception as error:  # transformers raises many exception types
        first = str(error).splitlines()[0]
        raise ValueError(f"model.tokenizer = {name!r}: no tokenizer can be loaded. ({first})") from error


def is_adapter(path: str) -> bool:
    """Whether the folder holds an adapter instead of a full model."""
    return (Path(path) / ADAPTER).is_file()


def _is_only_adapter(path: str) -> bool:
    """Whether the folder holds an adapter without the config.json of its base model."""
    return is_adapter(path) and not (Path(path) / "config.json").is_file()


def base_of(cfg: ModelConfig) -> ModelConfig:
    """`cfg` for the base model of the adapter that `cfg` names, with the adapter's tokenizer.

    Raises ValueError if the adapter names no base model.
    """
    table = json.loads((Path(cfg.path) / ADAPTER).read_text(encoding="utf-8"))
    base = table["base_model_name_or_path"]
    if not base:
        raise ValueError(f"model.path = {cfg.path!r}: an adapter whose {ADAPTER} names no base model: write it in")
    tokenizer, revision = cfg.tokenizer or cfg.path, table.get("revision")
    return dataclasses.replace(cfg, path=base, tokenizer=tokenizer, revision=None if Path(base).is_dir() else revision)


def of_base(cfg: ModelConfig, read: Callable[[ModelConfig], T]) -> T:
    """`read` of the base model of the adapter that `cfg` names. Its error messages get the adapter's path."""
    try:
        return read(base_of(cfg))
    except ValueError as error:
        raise ValueError(f"model.path = {cfg.path!r}: the base model of this adapter: {error}") from None


def expert_counts(config: Any) -> list[int]:
    """The experts per token and the total number of experts; 0 if the config has no such key."""
    text = config.get_text_config()
    return [next((v for k in names if isinstance(v := getattr(text, k, None), int)), 0) for names in EXPERT_KEYS]


def check_expert_parallel(cfg: ModelConfig, ranks: int, count: int) -> None:
    """Raises ValueError if the model's `count` experts cannot be divided among `ranks` ranks."""
    setting = f"scale.expert_parallel = {ranks}"
    if ranks > 1 and count < 2:
        raise ValueError(f"{setting}: model.path = {cfg.path!r} is no mixture of experts: set it to 1")
    if count % ranks:
        raise ValueError(f"{setting} does not divide the {count} experts of model.path = {cfg.path!r}: choose one that does")


def check_path(cfg: ModelConfig) -> None:
    """Raises ValueError for problems with a local folder, with clearer messages than those of transformers."""
    check_folder(cfg)
    folder, setting = Path(cfg.path), f"model.path = {cfg.path!r}"
    if not folder.is_dir() or any(folder.glob("*.safetensors")) or gguf_file(cfg.path):
        return
    pickles = [p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern)]
    if not pickles:
        raise ValueError(f"{setting}: the folder has no weights (*.safetensors)")
    if not cfg.allow_pickle:
        raise ValueError(
            f"{setting}: the weights are pickled only ({pickles[0]}), and loading them can run code. Convert "
            "them to safetensors, or set model.allow_pickle = true if you trust them"
        )


def check_folder(cfg: ModelConfig) -> None:
    """The part of `check_path` that does not require weights."""
    folder, setting = Path(cfg.path), f"model.path = {cfg.path!r}"
    if not cfg.path:
        raise ValueError("model.path is required: a folder or a Hugging Face id")
    if gguf_file(cfg.path):
        return
    if folder.is_file():
        raise ValueError(f"{setting}: this is a file; give the folder that holds config.json, or a file *.gguf")
    if not folder.is_dir():
        check_folder_exists(cfg.path)
        return
    if cfg.revision is not None:
        raise ValueError(f"model.revision = {cfg.revision!r}: has no effect on the folder {cfg.path}; remove it")
    if not (folder / "config.json").is_file() and not is_adapter(cfg.path):
        inner = folder / "model"
        remedy = f": give {inner}" if (inner / "config.json").is_file() else ""
        raise ValueError(f"{setting}: the folder has no config.json, so it holds no transformers model{remedy}")


def load_error(cfg: ModelConfig, error: Exception) -> str:
    """Translates an error of transformers into a message for the user."""
    setting, text = f"model.path = {cfg.path!r}", str(error).strip() or type(error).__name__
    first = text.splitlines()[0]
    if "trust_remote_code" in text:
        return f"{setting}: it brings its own Python code. Read it; to run it set model.trust_remote_code = true"
    if "safetensors" in text and not cfg.allow_pickle:
        return f"{setting}: no safetensors weights. If you trust its pickled ones, set model.allow_pickle = true. ({first})"
    if not Path(cfg.path).is_dir():
        hub = f"neither a folder here nor a model of the Hugging Face hub (revision {cfg.revision or 'main'})"
        return f"{setting}: {hub}. ({first})"
    if first.startswith("Validation error for field"):
        return f"{setting}: {' '.join(text.split())}. Mend the model's config.json; a token is given by its id, a number"
    if "FlashAttention" in text:
        return f"model.attention = {cfg.attention!r}: {first} (the default is sdpa)"
    if "does not recognize this architecture" in text:
        return f"{setting}: this version of transformers does not know its model type; update transformers. ({first})"
    return f"{setting}: cannot be loaded as a causal language model. ({first})"


def load_tokenizer(cfg: ModelConfig) -> PreTrainedTokenizerBase:
    """Loads the tokenizer that `cfg` names. Raises ValueError if there is none."""
    path = cfg.tokenizer or cfg.path
    setting = f"model.tokenizer = {path!r}" if cfg.tokenizer else f"model.path = {path!r}"
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(f"{setting}: the folder has no tokenizer (tokenizer.json); set model.tokenizer")
    if not folder.is_dir() and no_id(path):
        raise ValueError(f"{setting}: no tokenizer can be loaded: no such folder")
    revision = None if cfg.tokenizer else cfg.revision
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=cfg.trust_remote_code)
    except Exception as error:  # transformers raises many exception types
        if "trust_remote_code" in str(error):
            raise ValueError(load_error(cfg, error)) from error
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{setting}: no tokenizer can be loaded; set model.tokenizer. ({first})") from error


def embedding_rows(model: PreTrainedModel) -> int:
    """The number of rows of the model's embedding table."""
    table: Any = model.get_input_embeddings()
    return table.weight.shape[0]


def check_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError if the tokenizer's vocabulary is empty or has ids beyond the model's embedding table."""
    rows, vocabulary = embedding_rows(model), tokenizer.get_vocab()
    if not vocabulary:
        raise ValueError("the tokenizer's vocabulary is empty: set model.tokenizer to a folder with a tokenizer")
    token, top = max(vocabulary.items(), key=lambda item: item[1])
    if top >= rows:
        raise ValueError(
            f"the tokenizer has {token!r} with id {top}, but the model embeds only {rows} tokens: set model.tokenizer "
            "to the model's own, or resize the embedding"
        )


def processor_files(model: PreTrainedModel) -> dict[str, bytes]:
    """The files of a multimodal model's processor, by name: vLLM and transformers need them beside its weights. Only those
    that are where the model was read.
    """
    found = {}
    for name in PROCESSOR_FILES if model.name_or_path and model.config.get_text_config() is not model.config else ():
        with contextlib.suppress(OSError):
            path = cached_file(str(model.name_or_path), name, revision=getattr(model.config, "_commit_hash", None))
            found[name] = Path(str(path)).read_bytes()
    return found


def check_weights(model: PreTrainedModel) -> None:
    """Raises ValueError, and names the weight, for nan or infinite values, and for one tensor under two names that the model
    does not declare as tied: transformers would not save it, or leave one out.
    """
    names: dict[tuple[torch.device, int], str] = {}
    tied = getattr(model, "all_tied_weights_keys", {})
    for name, p in model.named_parameters(remove_duplicate=False):
        weight, own = local(p), tied.get(name, name)  # each rank checks its shard
        if weight.is_meta or not weight.numel():
            continue
        if (other := names.setdefault((weight.device, weight.data_ptr()), own)) != own:
            raise ValueError(
                f"{name} and {other} of {type(model).__name__} are one tensor, but its class and config declare no tie: "
                "it cannot be saved: give each its own copy, or for the head set tie_word_embeddings in the config"
            )
        if not weight.is_floating_point() or weight.dtype.itemsize == 1:
            continue
        ends = torch.stack(torch.aminmax(weight.detach()))
        if not ends.isfinite().all():
            what = "nan" if ends.isnan().any() else "inf"
            raise ValueError(
                f"the weights of {type(model).__name__} hold {what} in {name}: give a model whose weights are finite numbers"
            )
