"""`gspo export`: writes a trained model as a plain Hugging Face folder, optionally merged, and uploads it to the Hub."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from gspo.backends.hf.files import base_of, is_adapter
from gspo.backends.hf.lora import read_model
from gspo.config.files import load
from gspo.config.import_function import describe
from gspo.config.policy import ModelConfig
from gspo.runs import checkpoint, disk


def export(source: Path, out: Path | None = None, merge: bool = False, push: str | None = None) -> str:
    """Writes a model into a folder and, with `push`, to the Hub. Returns its folder or URL.

    Args:
        source: A run folder (its newest model is taken), a checkpoint or a model folder.
        out: The folder to write into; by default export/ in the run folder.
        merge: Merge the adapter into its base model.
        push: The Hub repository; created as a private one if it does not exist.

    Raises:
        ValueError: If the model cannot be exported.
        SaveError: If the disk is full.
        RuntimeError: If the Hub does not accept the model.
    """
    cfg = named(source)
    if out is None and not (source / "checkpoints").is_dir():
        raise ValueError(f"{source}: is no run folder, so name the folder to write into: --out DIR")
    out = source / "export" if out is None else out
    if out.resolve().is_relative_to(Path(cfg.path).resolve()):
        raise ValueError(f"--out {out}: lies in the model's own folder; give another one")
    adapter = is_adapter(cfg.path)
    if merge and not adapter:
        raise ValueError(f"--merge: the model in {cfg.path} is whole, without an adapter; leave it out")
    if push is not None:
        check_push(push, cfg, whole=merge or not adapter)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"--out {out}: exists already; give another folder")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    if merge:
        model = read_model(cfg)
        disk.write_folder(out, model.save)
    else:
        disk.write_folder(out, lambda part: shutil.copytree(cfg.path, part, dirs_exist_ok=True))
    return str(out) if push is None else upload(out, push)


def named(source: Path) -> ModelConfig:
    """The model in a folder, and how to read it. Raises ValueError if there is none, RuntimeError if it is damaged."""
    if not source.is_dir():
        raise ValueError(f"{source}: no such folder; give a run folder, a checkpoint or a model")
    folder = source
    if (source / "checkpoints").is_dir():
        last = checkpoint.latest(source / "checkpoints")
        folder = source / checkpoint.MODEL
        if last is not None and (not folder.is_dir() or last.stat().st_mtime_ns > folder.stat().st_mtime_ns):
            folder = last / checkpoint.MODEL  # the run is not finished, or was resumed after it finished
    elif (source / checkpoint.STATE).exists():
        folder = source / checkpoint.MODEL
    if (folder.parent / checkpoint.STATE).exists():
        checkpoint.check(folder.parent)
    if not is_adapter(str(folder)) and not (folder / "config.json").is_file():
        raise ValueError(f"{source}: holds no model yet; give a run folder, a checkpoint or a model")
    settings = folder.parent / checkpoint.CONFIG
    cfg = load(settings).model if settings.is_file() and folder.name == checkpoint.MODEL else ModelConfig()
    return dataclasses.replace(
        cfg, path=str(folder), tokenizer=None, revision=None, device="cpu", dtype="float32", autocast="auto",
        attention="sdpa", expert_kernels="auto",
    )  # fmt: skip


def check_push(repository: str, cfg: ModelConfig, whole: bool) -> None:
    """Raises ValueError if the model cannot go to the Hub, before anything is written."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ValueError(f"--push {repository}: {error}") from None
    if not whole and Path(base := base_of(cfg).path).is_dir():
        raise ValueError(f"--push {repository}: the adapter needs its base model, {base}, which only you have: add --merge")


def upload(folder: Path, repository: str) -> str:
    """Uploads a folder to the Hub and returns its URL. Raises RuntimeError with the remedy."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        url = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="Add the model")
    except Exception as error:  # the Hub client's, or those of its HTTP library, which depends on the version
        why = f"the Hub did not take it ({describe(error)}). The model is in {folder}"
        remedy = "Log in by `hf auth login`, or set HF_TOKEN to a token that may write, and send it by"
        raise RuntimeError(f"--push {repository}: {why}. {remedy} `hf upload {repository} {folder}`") from error
    return str(url)
