"""Writes the table "On paper" of docs/scale.md: what public models need on many ranks; `--check` only compares."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from gspo.build.plan import Lengths, plan
from gspo.config.files import from_dict
from gspo.learner import costs
from gspo.learner.costs import GIB, Machines

TARGET = Path(__file__).with_name("scale.md")
BEGIN, END = "<!-- made by docs/on_paper.py -->\n", "<!-- end -->\n"
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
}
SIZES = {
    "30B-A3B": {"hidden_size": 2048, "num_hidden_layers": 48, "moe_intermediate_size": 768, "num_attention_heads": 32},
    "235B-A22B": {"hidden_size": 4096, "num_hidden_layers": 94, "moe_intermediate_size": 1536, "num_attention_heads": 64},
}
RUNS = (
    ("30B-A3B", 8, 8, 1),
    ("30B-A3B", 16, 8, 1),
    ("30B-A3B", 64, 8, 1),
    ("30B-A3B", 64, 8, 8),
    ("235B-A22B", 64, 8, 1),
    ("235B-A22B", 128, 8, 1),
    ("235B-A22B", 256, 8, 1),
    ("235B-A22B", 256, 8, 2),
    ("235B-A22B", 512, 8, 4),
)
LENGTHS = Lengths(prompt=512, completion=2088)


def table() -> str:
    """The rows, computed from the models' sizes."""
    lines = [
        "| Qwen3 | ranks | experts | replicas | state, GiB | in a pass, GiB | uneven | sent a step, GB | compute, s | "
        "communication, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, ranks, experts, replicas in RUNS:
            Path(folder, "config.json").write_text(json.dumps(QWEN3_MOE | SIZES[name]))
            config = from_dict(
                {
                    "model": {"path": folder},
                    "rollout": {"num_prompts": 64, "num_generations": 8},
                    "algorithm": {"mini_batches": 1},
                    "train": {"gradient_checkpointing": True},
                    "sampler": {"engine": "vllm"},
                    "scale": {"ranks": ranks, "experts": experts, "replicas": replicas},
                }
            )
            made = plan(config, LENGTHS, Machines())
            sent = sum(row.total(made.work) for row in made.sent) / 1e9
            uneven = costs.unevenness(made.paper.weights, made.spread)
            lines.append(
                f"| {name} | {ranks} | {experts} | {replicas} | {made.state / GIB:.1f} | {made.together / GIB:.0f} | "
                f"{uneven:.2f} | {sent:.0f} | {made.compute:.1f} | {made.sending:.1f} |"
            )
    return "\n".join(lines) + "\n"


def page(old: str) -> str:
    """The page with its table as it would be computed now."""
    before, _, rest = old.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    old = TARGET.read_text(encoding="utf-8")
    if "--check" not in sys.argv:
        TARGET.write_text(page(old), encoding="utf-8")
    elif old != page(old):
        sys.exit(f"{TARGET.name} is out of date: run `make docs`")
