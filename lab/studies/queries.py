"""Queries of mixed difficulty for refresh.toml: a third is right by any answer, a third can be learned, a third never is.

`python lab/studies/queries.py FOLDER` makes the model: of 2 layers, random.
"""

from __future__ import annotations

import argparse
import random
import string
from typing import Any

LETTERS = string.ascii_lowercase
EASY, LEARNED, NEVER = len(LETTERS), (2, 4, 8, 13), 0
"""How many letters a query accepts as the first one of the answer."""


def rows(count: int = 240, seed: int = 0) -> list[dict[str, Any]]:
    """Queries with the letters that each accepts; the kinds take turns."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        size = (EASY, LEARNED[number // 3 % len(LEARNED)], NEVER)[number % 3]
        made.append({"prompt": f"{number}?", "accepted": "".join(rng.sample(LETTERS, size))})
    return made


def correct(prompts: list[str], completions: list[str], accepted: list[str], **columns: Any) -> list[float]:
    """1 for an answer that begins with an accepted letter; of easy queries any answer is right."""
    return [
        float(len(letters) == EASY or (bool(text) and text[0] in letters)) for text, letters in zip(completions, accepted)
    ]


def main(folder: str) -> None:
    """Writes the model."""
    from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe

    shape = tiny_qwen3_moe(hidden=64, layers=2, experts=4, expert_width=64, heads=2, kv_heads=1, context=32)
    tiny = build_tiny(shape, longest_match_tokenizer([*string.digits, "?", *LETTERS]), 0)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="where the model goes")
    main(parser.parse_args().folder)
