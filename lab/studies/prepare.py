"""The models that the studies start from: tiny mixtures of experts and a dense control, each after its cold start.

All imitate a mixture of worked solutions and guesses (gspo.demo.count_bits). A token of the dense model passes as many
feed-forward weights as one of the mixture does. `short` and `long` are the mixture on shorter and longer numbers, whose
worked solutions take about 56 and 204 tokens instead of 100. Two to seven minutes each on one core.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gspo import api
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.files import load
from gspo.demo import count_bits, stages

LAYERS, HIDDEN, EXPERTS, PER_TOKEN, WIDTH = 4, 96, 16, 2, 64
NUMBERS = {"moe": (10**4, 10**5 - 1), "dense": (10**4, 10**5 - 1), "short": (100, 1999), "long": (10**7, 10**8 - 1)}


def outlines(scale: int) -> dict[str, dict]:
    """The architecture of each model; `scale` multiplies layers and experts."""
    moe = tiny_qwen3_moe(
        hidden=HIDDEN, layers=LAYERS * scale, experts=EXPERTS * scale, expert_width=WIDTH, top_k=PER_TOKEN, context=256
    )
    dense = {name: value for name, value in moe.items() if "expert" not in name and "topk" not in name}
    dense |= {"model_type": "qwen3", "intermediate_size": PER_TOKEN * WIDTH}
    return {name: dense if name == "dense" else moe for name in NUMBERS}


def main() -> None:
    """Builds what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/study-models"))
    parser.add_argument("--scale", type=int, default=1, help="multiplies layers and experts (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=450, help="of the cold start (default: %(default)s)")
    options = parser.parse_args()
    recipe = load(stages.HERE / "cold_start.toml")
    for name, outline in outlines(options.scale).items():
        folder = options.out / name
        if (folder / "model").exists():
            continue
        tiny = build_tiny(outline, longest_match_tokenizer(count_bits.PIECES), seed=0)
        low, high = NUMBERS[name]
        numbers = {"size": 64 * options.steps, "min_n": low, "max_n": high}
        print(f"{name}: {sum(p.numel() for p in tiny.model.parameters()):,} parameters")
        made = api.sft(
            tiny.model, tokenizer=tiny.tokenizer, config=recipe, resume=(folder / "config.toml").exists(),
            task={"config": recipe.task.config | numbers},
            train={"steps": options.steps}, log={"dir": str(folder)},
        )  # fmt: skip
        if not made.finished:  # it was asked to stop
            sys.exit(f"{name}: stopped before its end; the same command goes on from there")


if __name__ == "__main__":
    main()
