"""Folders of models, and loading them."""

import shutil

from safetensors.torch import load_file

from gspo.backends.hf.load import load_model
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.policy import ModelConfig
from gspo.config.scale import ScaleConfig
from tests.tiny_run import PIECES

SMALL = {"hidden": 32, "layers": 2, "experts": 4, "expert_width": 32, "heads": 2, "kv_heads": 1, "context": 64}
DENSE = {"model_type": "qwen3", "num_experts": None, "num_experts_per_tok": None, "moe_intermediate_size": None}


def model_in(folder, dense=False, tied=False, pieces=(*PIECES, "c")):
    """A tiny model's folder. With `pieces` it has 20 tokens, which 2 and 4 ranks divide."""
    config = tiny_qwen3_moe(**SMALL, tie_word_embeddings=tied)
    config = {k: v for k, v in (config | DENSE).items() if v is not None} if dense else config
    build_tiny(config, longest_match_tokenizer(pieces), 0).save(folder)
    return str(folder)


def copy(saved, tmp_path, without=()):
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    for pattern in without:
        for path in folder.glob(pattern):
            path.unlink()
    return folder


def weights_in(folder):
    return {name: x for file in folder.glob("*.safetensors") for name, x in load_file(file).items()}


def load(folder, **fields):
    return load_model(ModelConfig(path=str(folder), device="cpu", **fields))


def load_on(ranks, path, scale=None, **fields):
    """This rank's shards of a model."""
    from gspo.backends.hf.sharded import load_sharded

    return load_sharded(ModelConfig(path=str(path), device="cpu", **fields), scale or ScaleConfig(), ranks.size)
