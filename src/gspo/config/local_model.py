"""Finds the configuration and tokenizer of a model on this machine, without torch and without the network."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gspo.config.policy import ModelConfig

ADAPTER = "adapter_config.json"  # marks a folder that holds only an adapter
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Each of them marks a folder that holds a tokenizer."""


def local_copy(model: ModelConfig) -> ModelConfig | None:
    """`model` with a local folder for each Hugging Face id; None if config.json or the tokenizer is not on this machine."""
    folder = _folder(model.path, model.revision, "config.json")
    if folder is None:
        return None
    own = model.tokenizer is None
    tokenizer = folder if own else _folder(model.tokenizer or "", None, "tokenizer_config.json")
    if tokenizer is None or not any((tokenizer / name).is_file() for name in TOKENIZER_FILES):
        return None
    revision = model.revision if Path(model.path).is_dir() else None
    return dataclasses.replace(model, path=str(folder), tokenizer=None if own else str(tokenizer), revision=revision)


def no_id(path: str) -> bool:
    """Whether a path cannot be a Hugging Face id, only a folder or a file."""
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or path.endswith(".gguf")


def check_folder_exists(path: str) -> None:
    """Raises ValueError for a model.path that can only be a folder or file, and is not there."""
    if no_id(path) and not Path(path).exists():
        raise ValueError(f"model.path = {path!r}: no such {'file' if path.endswith('.gguf') else 'folder'}")


def _folder(name: str, revision: str | None, file: str) -> Path | None:
    """The folder that holds this file of a model: a folder, or the cached snapshot of a Hugging Face id."""
    if not name or Path(name).is_dir():
        return Path(name) if name and (Path(name) / file).is_file() else None
    from huggingface_hub.constants import HF_HUB_CACHE

    if not (Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}").is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, file, revision=revision)
    except ValueError:  # no id
        return None
    return Path(found).parent if isinstance(found, str) else None
