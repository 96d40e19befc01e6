"""Reads GGUF files: transformers converts one to a plain Hugging Face folder, once, which stays in the user's cache."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer

from gspo.config.local_model import ADAPTER
from gspo.config.policy import ModelConfig
from gspo.runs.disk import cache_folder, write_folder

logger = logging.getLogger(__name__)
PART = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
EXACT = {"F32", "F16", "BF16", "F64"}  # types of tensors that are not quantized


def gguf_file(path: str) -> Path | None:
    """The GGUF file that model.path names: the file itself, or the only model in a folder. None for any other model. Raises
    ValueError for a folder with several files, and for a part of a file that was split.
    """
    place = Path(path)
    if place.is_dir():
        if (place / "config.json").is_file() or (place / ADAPTER).is_file():
            return None
        found = sorted(place.glob("*.gguf"))
    else:
        found = [place] if place.suffix == ".gguf" and place.is_file() else []
    if split := next(filter(None, (PART.search(file.name) for file in found)), None):
        raise ValueError(
            f"model.path = {path!r}: the model is split into {int(split[1])} files, which cannot be read: join them with "
            "llama.cpp's gguf-split"
        )
    if len(found) > 1:
        names = ", ".join(file.name for file in found[:3])
        raise ValueError(f"model.path = {path!r}: the folder has {len(found)} GGUF files ({names}): name one of them")
    return found[0] if found else None


def converted(cfg: ModelConfig) -> ModelConfig:
    """`cfg` with the path of the converted model (`convert`), if model.path names a GGUF file; otherwise `cfg` itself."""
    file = gguf_file(cfg.path)
    if file is None:
        return cfg
    if cfg.revision is not None:
        raise ValueError(f"model.revision = {cfg.revision!r}: has no effect on the file {file}; remove it")
    about = file.resolve(), (stat := file.stat()).st_size, stat.st_mtime_ns, cfg.dtype
    folder = cache_folder() / "models" / f"{file.stem}-{hashlib.sha256(repr(about).encode()).hexdigest()[:12]}"
    convert(file, folder, cfg.dtype)
    return dataclasses.replace(cfg, path=str(folder))


def convert(file: Path, folder: Path, dtype: str) -> None:
    """Converts a GGUF file to a folder in Hugging Face format with weights in `dtype`, unless the folder exists. Raises
    ValueError if transformers cannot read the file, and SaveError if the disk refuses the folder.
    """
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):  # another rank or run may be converting it
        if folder.is_dir():
            return
        begin = time.monotonic()
        try:
            types = tensor_types(file)
            logger.info("converting %s (%s) to %s weights in %s, once", file.name, types, dtype, folder)
            model, tokenizer = _read(file, dtype)
        except (ValueError, KeyError, NotImplementedError, TypeError, OSError, IndexError) as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ValueError(f"model.path = {str(file)!r}: transformers cannot read this GGUF file: {first}") from error

        def save(part: Path) -> None:
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)

        write_folder(folder, save)
        logger.info("converted in %.0f s", time.monotonic() - begin)


def missing_tensors(info: dict[str, Any]) -> str:
    """What a file lacks for a model, by the loading info of transformers; "" if it lacks nothing."""
    missing = sorted([*info["missing_keys"], *(str(key[0]) for key in info["mismatched_keys"])])
    return f"{len(missing)} tensors are missing or of another shape ({', '.join(missing[:3])}, ...)" if missing else ""


def tensor_types(file: Path) -> str:
    """How the weights are stored, by decreasing share, such as "79% Q4_1, 21% Q8_0: rounded, ..."."""
    from gguf import GGUFReader

    sizes: Counter[str] = Counter()
    for tensor in GGUFReader(file).tensors:
        sizes[tensor.tensor_type.name] += int(tensor.n_elements)
    if not sizes:
        raise ValueError("it holds no tensors")
    total = sizes.total()
    shares = ", ".join(f"{size / total:.0%} {name}" for name, size in sizes.most_common() if size > total / 200)
    return shares if set(sizes) <= EXACT else f"{shares}: rounded, so less exact than the original model"


def _read(file: Path, dtype: str) -> tuple[Any, Any]:
    """Model and tokenizer. The model is built anew, because one that was read from GGUF refuses to be saved."""
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    place, kind = {"gguf_file": file.name}, getattr(torch, dtype)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **place)
    read, info = from_pretrained(file.parent, **place, dtype=kind, output_loading_info=True, ignore_mismatched_sizes=True)
    if problem := missing_tensors(info):
        raise ValueError(problem)
    config, weights = read.config, read.state_dict()
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=kind)
    model.load_state_dict(weights)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer
