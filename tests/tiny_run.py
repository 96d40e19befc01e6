"""A tiny model, a task and settings with which a whole run takes seconds."""

import torch

from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe

PIECES = [*"0123456789+=? ", "ab", "a", "b"]
ROWS = [{"prompt": f"{i}+{j}=", "answer": str((i + j) % 10)} for i in range(8) for j in range(5)]


def likes_a(prompts, completions, **columns):
    """Share of the letter a: easy to learn, never the same for all completions."""
    return [c.count("a") / max(1, len(c)) for c in completions]


def dials(**turned):
    """[sampler] of a run that samples with rounded weights, or with old ones."""
    return {"engine": "lab.studies.dials:dials", "engine_args": turned}


def model(seed=0, **config):
    small = {"hidden": 32, "layers": 2, "experts": 4, "expert_width": 32, "heads": 2, "kv_heads": 1, "context": 64}
    return build_tiny(tiny_qwen3_moe(**small | config), longest_match_tokenizer(PIECES), seed)


def settings(folder, **changes):
    made = {
        "rollout": {"num_prompts": 8, "num_generations": 4, "max_completion_length": 8},
        "optimizer": {"lr": 3e-3},
        "train": {"steps": 6, "save_every": 2, "seed": 1},
        "eval": {"every": 3, "num_prompts": 4},
        "reward": {"correct_threshold": 0.5},
        "log": {"dir": str(folder)},
    }
    for section, table in changes.items():
        made[section] = made.get(section, {}) | table if isinstance(table, dict) else table
    return made


def sharpened(factor):
    """The model with all matrices times `factor`: it is surer, and feels rounded weights, as pretrained models do."""
    tiny = model()
    with torch.no_grad():
        for p in tiny.model.parameters():
            if p.ndim >= 2:
                p.mul_(factor)
    return tiny
