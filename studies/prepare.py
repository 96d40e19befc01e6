"""The models that the study starts from: a tiny mixture of experts and a dense control, both after the same cold start.

Both imitate the same mixture of worked solutions and guesses (gspo.demo.count_bits). A token of the dense model passes as
many feed-forward weights as one of the mixture does. About three minutes each on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gspo import api
from gspo.backends.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.configfile import load
from gspo.demo import count_bits, play

LAYERS, HIDDEN, EXPERTS, PER_TOKEN, WIDTH = 4, 96, 16, 2, 64


def outlines(scale: int) -> dict[str, dict]:
    """The architecture of each model; `scale` multiplies layers and experts."""
    moe = tiny_qwen3_moe(
        hidden=HIDDEN, layers=LAYERS * scale, experts=EXPERTS * scale, expert_width=WIDTH, top_k=PER_TOKEN, context=256
    )
    dense = {name: value for name, value in moe.items() if "expert" not in name and "topk" not in name}
    return {"moe": moe, "dense": dense | {"model_type": "qwen3", "intermediate_size": PER_TOKEN * WIDTH}}


def main() -> None:
    """Builds what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/study-models"))
    parser.add_argument("--scale", type=int, default=1, help="multiplies layers and experts (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=450, help="of the cold start (default: %(default)s)")
    options = parser.parse_args()
    recipe = load(play.HERE / "cold_start.toml")
    for name, outline in outlines(options.scale).items():
        folder = options.out / name
        if (folder / "model").exists():
            continue
        tiny = build_tiny(outline, longest_match_tokenizer(count_bits.PIECES), seed=0)
        print(f"{name}: {sum(p.numel() for p in tiny.model.parameters()):,} parameters")
        api.sft(
            tiny.model, tokenizer=tiny.tokenizer, config=recipe, resume=(folder / "config.toml").exists(),
            task={"config": recipe.task.config | {"size": 64 * options.steps}},
            train={"steps": options.steps}, log={"dir": str(folder)},
        )  # fmt: skip


if __name__ == "__main__":
    main()
