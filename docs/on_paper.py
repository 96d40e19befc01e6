"""Writes the tables of docs/scale.md and docs/memory.md: what public models need on many ranks, and on one GPU; `--check`
only compares.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gspo.assembly.host_memory import GIB
from gspo.config.files import from_dict
from gspo.plan import cost_model
from gspo.plan.plan import plan
from gspo.plan.work import Lengths

HERE = Path(__file__).parent
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
QWEN3 = {"model_type": "qwen3", "head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151_936}
DENSE = {  # hidden states, layers, heads, the width of a layer's middle, and whether head and embeddings are one weight
    "0.6B": (1024, 28, 16, 3072, True), "1.7B": (2048, 28, 16, 6144, True), "4B": (2560, 36, 32, 9728, True),
    "8B": (4096, 36, 32, 12288, False), "14B": (5120, 40, 40, 17408, False), "32B": (5120, 64, 64, 25600, False),
}  # fmt: skip
NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "tie_word_embeddings")
ADAPTERS = {"lora": {"rank": 16, "targets": ["all-linear", "experts"]}}
BFLOAT16 = {"dtype": "bfloat16"}
CHOICES = {  # the settings of a column
    "all weights, float32": {},
    "all weights, float32, 8-bit moments": {"optimizer": {"name": "adamw_8bit"}},
    "all weights, bfloat16": {"model": BFLOAT16},
    "adapters, bfloat16": ADAPTERS | {"model": BFLOAT16},
    "adapters, int8": ADAPTERS | {"model": BFLOAT16 | {"quantize": "int8"}},
    "adapters, nf4": ADAPTERS | {"model": BFLOAT16 | {"quantize": "nf4"}},
}
GPUS = (24, 48, 80, 141)  # as they are sold; counted in GiB, which the largest have not wholly
SPARE = 0.94  # of that which a run gets


def table() -> str:
    """The rows, computed from the models' sizes."""
    lines = [
        "| Qwen3 | ranks | experts | replicas | state, GiB | in a pass, GiB | uneven | sent a step, GB |",
        "|---|---|---|---|---|---|---|---|",
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
                    "scale": {"ranks": ranks, "expert_parallel": experts, "data_parallel_replicas": replicas},
                }
            )
            made = plan(config, LENGTHS)
            state, together = made.memory.state / GIB, made.memory.together / GIB
            sent = sum(row.total(made.work) for row in made.sent) / 1e9
            uneven = cost_model.unevenness(made.sharding.weights, made.spread)
            lines.append(
                f"| {name} | {ranks} | {experts} | {replicas} | {state:.1f} | {together:.0f} | {uneven:.2f} | {sent:.0f} |"
            )
    return "\n".join(lines) + "\n"


def fits() -> str:
    """What one GPU needs, and the smallest that has it."""
    lines = ["| Qwen3 | " + " | ".join(CHOICES) + " |", "|---" * (len(CHOICES) + 1) + "|"]
    shapes = {name: QWEN3 | dict(zip(NAMES, sizes)) for name, sizes in DENSE.items()}
    shapes["30B-A3B"] = QWEN3_MOE | SIZES["30B-A3B"]
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in shapes.items():
            Path(folder, "config.json").write_text(json.dumps(shape))
            cells = [need(folder, changes, mixture=name in SIZES) for changes in CHOICES.values()]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def need(folder: str, changes: dict[str, Any], mixture: bool) -> str:
    """A cell: GiB in a pass, and the GPU."""
    given = {**changes, "model": {"path": folder, **changes.get("model", {})}}
    if "lora" in changes and not mixture:
        given["lora"] = {"rank": 16}
    common = {
        "rollout": {"num_prompts": 64, "num_generations": 8, "max_completion_length": 2048},
        "train": {"gradient_checkpointing": True, "micro_batch_tokens": 8192},
        "sampler": {"engine": "vllm"},
    }
    amount = plan(from_dict(common | given), Lengths(512)).memory.fullest / GIB
    gpu = next((size for size in GPUS if amount <= SPARE * size), None)
    return f"{amount:.1f}" + (f" ({gpu})" if gpu else " (none)")


PAGES: dict[str, Callable[[], str]] = {"scale.md": table, "memory.md": fits}


def page(old: str, made: Callable[[], str] = table) -> str:
    """The page with its table as it would be computed now."""
    before, _, rest = old.partition(BEGIN)
    return before + BEGIN + made() + END + rest.partition(END)[2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where it is out of date")
    options = parser.parse_args()
    for name, made in PAGES.items():
        old = (HERE / name).read_text(encoding="utf-8")
        if not options.check:
            (HERE / name).write_text(page(old, made), encoding="utf-8")
        elif old != page(old, made):
            sys.exit(f"{name} is out of date: run `make docs`")
