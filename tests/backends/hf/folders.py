"""Folders of models, and loading them."""

import shutil

from gspo.backends.hf.load import load_model
from gspo.config.policy import ModelConfig


def copy(saved, tmp_path, without=()):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    for pattern in without:
        for path in folder.glob(pattern):
            path.unlink()
    return folder


def load(folder, **fields):
    return load_model(ModelConfig(path=str(folder), device="cpu", **fields))
