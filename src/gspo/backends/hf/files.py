"""The files of a transformers model: where they are, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file, extract_commit_hash

from gspo.config.import_function import pick_device
from gspo.config.policy import ModelConfig
from gspo.config.values import type_of

ADAPTER = "adapter_config.json"  # a folder with it holds an adapter alone
KEPT_KEYS = "keep_window_size"  # where tokens look at so many keys of a row at most, which they choose themselves


# What families call the experts that a token takes, and all that there are.
MIXTURE = (
    ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"),
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
)


@dataclass(frozen=True)
class Outline:
    """What is known of a model before its weights are read: enough to make and check the prompts."""

    tokenizer: PreTrainedTokenizerBase
    config: Any

    @property
    def context_length(self) -> int | None:
        """Most tokens the model can read as it reads fewer; None where it has no such limit.

        Rotary embeddings of the kinds "longrope" and "dynamic" change with the longest row of a pass, from some length on.
        Beyond it the likelihood of a completion would depend on its neighbours, and on when its keys were cached. So it
        would where a row has more keys than each token looks at (Doge).
        """
        config = self.config.get_text_config()
        limits = [getattr(config, name, None) for name in ("max_position_embeddings", KEPT_KEYS)]
        rotary = getattr(config, "rope_parameters", None) or {}
        for rope in (rotary, *rotary.values()):  # one for all layers, or one a kind of layer
            if isinstance(rope, dict) and rope.get("rope_type") in ("longrope", "dynamic"):
                limits.append(rope.get("original_max_position_embeddings"))
                limits.append(getattr(config, "original_max_position_embeddings", None))
        return min((limit for limit in limits if limit is not None), default=None)


def outline(model: Any, tokenizer: Any) -> Outline:
    """Of a loaded model. Raises ValueError where model and tokenizer are not of transformers, or not of each other."""
    for name, value, kind in (("model", model, PreTrainedModel), ("tokenizer", tokenizer, PreTrainedTokenizerBase)):
        if not isinstance(value, kind):
            raise ValueError(f"{name}: expected one of transformers ({kind.__name__}), got {type_of(value)}")
    check_tokenizer(model, tokenizer)
    check_settings(model.config, model.generation_config)
    return Outline(tokenizer, model.config)


def read_outline(cfg: ModelConfig) -> Outline:
    """The tokenizer and the configuration of the model that `cfg` names.

    Raises ValueError for all that is wrong with the model and can be seen without its weights.
    """
    check_path(cfg)
    pick_device(cfg.device)
    if _is_bare(cfg.path):
        with of_the_base(cfg):
            return read_outline(base_of(cfg))
    config = read_config(cfg)
    return Outline(load_tokenizer(cfg), config)


def read_config(cfg: ModelConfig) -> Any:
    """The config.json of the model that `cfg` names, or of that below its adapter. Raises ValueError for what is wrong."""
    check_folder(cfg)
    if _is_bare(cfg.path):
        with of_the_base(cfg):
            return read_config(base_of(cfg))
    options = {"revision": cfg.revision, "trust_remote_code": cfg.trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(cfg.path, **options)
    except Exception as error:  # transformers raises many kinds here
        raise ValueError(load_error(cfg, error)) from error
    try:
        check_settings(config, None)
    except ValueError as error:
        raise ValueError(f"model.path = {cfg.path!r}: {error}") from None
    return config


def commit_of(cfg: ModelConfig) -> str:
    """The commit of a model of the Hugging Face hub. Raises ValueError for one that is not there."""
    try:
        return _commit(cfg.path, "config.json", cfg.revision)
    except Exception as error:  # transformers raises many kinds here
        raise ValueError(load_error(cfg, error)) from error


def commit_of_tokenizer(name: str) -> str:
    """The commit of a tokenizer that model.tokenizer names. Raises ValueError for one that is not there."""
    try:
        return _commit(name, "tokenizer_config.json", None)
    except Exception as error:  # transformers raises many kinds here
        first = str(error).splitlines()[0]
        raise ValueError(f"model.tokenizer = {name!r}: no tokenizer can be loaded. ({first})") from error


def _commit(name: str, file: str, revision: str | None) -> str:
    return str(extract_commit_hash(cached_file(name, file, revision=revision), None))


def is_adapter(path: str) -> bool:
    """Whether a model's folder holds an adapter and no model of its own."""
    return (Path(path) / ADAPTER).is_file()


def _is_bare(path: str) -> bool:
    """Whether it is an adapter's folder without the settings of the model below."""
    return is_adapter(path) and not (Path(path) / "config.json").is_file()


def base_of(cfg: ModelConfig) -> ModelConfig:
    """The model below the adapter that `cfg` names, with the adapter's tokenizer. Raises ValueError where it names none."""
    table = json.loads((Path(cfg.path) / ADAPTER).read_text(encoding="utf-8"))
    base = table["base_model_name_or_path"]
    if not base:
        raise ValueError(f"model.path = {cfg.path!r}: an adapter whose {ADAPTER} names no base model: write it in")
    tokenizer, revision = cfg.tokenizer or cfg.path, table.get("revision")
    return dataclasses.replace(cfg, path=base, tokenizer=tokenizer, revision=None if Path(base).is_dir() else revision)


@contextmanager
def of_the_base(cfg: ModelConfig) -> Iterator[None]:
    """Around what reads the model below an adapter: errors name the adapter too."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"model.path = {cfg.path!r}: the base model of this adapter: {error}") from None


def mixture(config: Any) -> list[tuple[str, int] | None]:
    """How many experts a token takes, and how many there are, each with the name that the config has for it, or None."""
    text = config.get_text_config()
    return [next(((k, v) for k in names if isinstance(v := getattr(text, k, None), int)), None) for names in MIXTURE]


def check_settings(config: Any, generation: Any) -> None:
    """Raises ValueError for what a model's own settings cannot be: more experts for a token than there are, or a token that
    ends a completion and is no id.
    """
    text = config.get_text_config()
    taken, there = mixture(config)
    if taken is not None and there is not None and there[1] > 1 and not 0 < taken[1] <= there[1]:
        raise ValueError(
            f"{taken[0]} = {taken[1]} with {there[0]} = {there[1]}: a token takes from 1 to all of the experts: mend the "
            "model's config.json"
        )
    for name, holder in (("config.json", text), ("generation_config.json", generation)):
        eos = getattr(holder, "eos_token_id", None)
        for id in eos if isinstance(eos, (list, tuple)) else [eos]:
            if id is not None and (not isinstance(id, int) or isinstance(id, bool)):
                raise ValueError(
                    f"eos_token_id = {eos!r}: a token's id, a whole number, is expected: mend the model's {name}"
                )


def check_path(cfg: ModelConfig) -> None:
    """Raises ValueError for what is wrong with a local folder, in clearer words than transformers has."""
    check_folder(cfg)
    folder, setting = Path(cfg.path), f"model.path = {cfg.path!r}"
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
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
    """The part of `check_path` that asks for no weights."""
    folder, setting = Path(cfg.path), f"model.path = {cfg.path!r}"
    if not cfg.path:
        raise ValueError("model.path is required: a folder or a Hugging Face id")
    if folder.is_file():
        raise ValueError(f"{setting}: this is a file; give the folder that holds config.json")
    if not folder.is_dir():
        if _no_id(cfg.path):
            raise ValueError(f"{setting}: no such folder")
        return
    if cfg.revision is not None:
        raise ValueError(f"model.revision = {cfg.revision!r}: has no effect on the folder {cfg.path}; remove it")
    if not (folder / "config.json").is_file() and not is_adapter(cfg.path):
        inner = folder / "model"
        remedy = f": give {inner}" if (inner / "config.json").is_file() else ""
        raise ValueError(f"{setting}: the folder has no config.json, so it holds no transformers model{remedy}")


def _no_id(path: str) -> bool:
    """Whether a path can only be a folder, not a Hugging Face id."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1


def load_error(cfg: ModelConfig, error: Exception) -> str:
    """What an error of transformers means for the user."""
    setting, text = f"model.path = {cfg.path!r}", str(error).strip() or type(error).__name__
    first = text.splitlines()[0]
    if "trust_remote_code" in text:
        return f"{setting}: it brings its own Python code. Read it; to run it set model.trust_remote_code = true"
    if "safetensors" in text and not cfg.allow_pickle:
        remedy = "If it has pickled ones that you trust, set model.allow_pickle = true"
        return f"{setting}: no safetensors weights. {remedy}. ({first})"
    if not Path(cfg.path).is_dir():
        version = cfg.revision or "main"
        hub = f"neither a folder here nor a model of the Hugging Face hub (revision {version})"
        return f"{setting}: {hub}. ({first})"
    if first.startswith("Validation error for field"):
        return f"{setting}: {' '.join(text.split())}. Mend the model's config.json; a token is given by its id, a number"
    if "does not recognize this architecture" in text:
        return f"{setting}: this version of transformers does not know its model type; update transformers. ({first})"
    return f"{setting}: cannot be loaded as a causal language model. ({first})"


def load_tokenizer(cfg: ModelConfig) -> PreTrainedTokenizerBase:
    """The tokenizer that `cfg` names. Raises ValueError where there is none."""
    path = cfg.tokenizer or cfg.path
    setting = f"model.tokenizer = {path!r}" if cfg.tokenizer else f"model.path = {path!r}"
    files = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in files):
        raise ValueError(f"{setting}: the folder has no tokenizer (tokenizer.json); set model.tokenizer")
    if not folder.is_dir() and _no_id(path):
        raise ValueError(f"{setting}: no tokenizer can be loaded: no such folder")
    revision = None if cfg.tokenizer else cfg.revision
    try:
        return AutoTokenizer.from_pretrained(path, revision=revision, trust_remote_code=cfg.trust_remote_code)
    except Exception as error:  # transformers raises many kinds here
        if "trust_remote_code" in str(error):
            raise ValueError(load_error(cfg, error)) from error
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{setting}: no tokenizer can be loaded; set model.tokenizer. ({first})") from error


def embedded(model: PreTrainedModel) -> int:
    """The number of tokens that the model has embeddings for."""
    table: Any = model.get_input_embeddings()
    return table.weight.shape[0]


def check_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError where the tokenizer has ids that the model does not."""
    rows, vocabulary = embedded(model), tokenizer.get_vocab()
    if not vocabulary:
        raise ValueError("the tokenizer's vocabulary is empty: set model.tokenizer to a folder with a tokenizer")
    token, top = max(vocabulary.items(), key=lambda item: item[1])
    if top >= rows:
        raise ValueError(
            f"the tokenizer has {token!r} with id {top}, but the model embeds only {rows} tokens: they do "
            "not belong together (set model.tokenizer), or the embedding was not resized"
        )


def check_weights(model: PreTrainedModel) -> None:
    """Raises ValueError, with its name, for a weight that is nan or infinite."""
    for name, weight in model.named_parameters():
        weight = weight.to_local() if hasattr(weight, "to_local") else weight  # a shard: each rank looks at its own
        if not weight.is_floating_point() or weight.dtype.itemsize == 1 or weight.is_meta or not weight.numel():
            continue
        ends = torch.stack(torch.aminmax(weight.detach()))
        if not ends.isfinite().all():
            what = "nan" if ends.isnan().any() else "inf"
            raise ValueError(
                f"the weights of {type(model).__name__} hold {what} in {name}: give a model whose weights are finite numbers"
            )
