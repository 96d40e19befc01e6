"""What a mixture made of a dense model loses, and what imitating the dense model repairs: the loss on fixed completions.

    python lab/studies/upcycled.py ROWS.jsonl MODEL [MODEL ...]

ROWS.jsonl is what `gspo eval ... --out` wrote with the dense model. docs/recipes.md has the commands.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gspo.statistics.intervals import interval
from gspo.statistics.verdicts import spell


@torch.inference_mode()
def losses(path: str, rows: list[dict[str, str]]) -> list[float]:
    """The mean loss of the completion's tokens and the end, nats a token, of each row."""
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    found = []
    for row in rows:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        said = [*tokenizer(row["completion"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        logits = model(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1]
        found.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(said))))
    return found


def main() -> None:
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text(encoding="utf-8").splitlines()]
    for path in options.models:
        print(f"{path}  {spell(interval(losses(path, rows)), '.3f')}  {len(rows)} completions", flush=True)


if __name__ == "__main__":
    main()
