"""One rollout step of the chain task by gspo, as a worker for rollout_step.py (see paired.py): `gspo train`'s own path."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from typing import Any

from paired import THREADS, Commands
from trl_step import GENERATIONS, LEARNING_RATE, MINI_BATCHES, PROMPTS


def serve(commands: Commands, model_folder: str, changes: dict[str, dict[str, Any]], examples: int) -> None:
    """Does one step of a training run a command. `changes`: configuration sections to change. examples: see chain.py."""
    import torch
    from chain import COMPLETION_TOKENS, digit_share, make_items

    from gspo.assembly import assemble
    from gspo.assembly.call_inputs import CallInputs
    from gspo.config.files import as_config
    from gspo.training.step import step

    torch.set_num_threads(THREADS)

    def reward(completions: list[str], **columns: Any) -> list[float]:
        return [digit_share(completion) for completion in completions]

    with tempfile.TemporaryDirectory() as scratch:
        sections: dict[str, dict[str, Any]] = {
            "model": {"path": model_folder, "device": "cpu"},
            "task": {"source": "(given)"},
            "rollout": {
                "num_prompts": PROMPTS,
                "num_generations": GENERATIONS,
                "max_completion_length": COMPLETION_TOKENS,
            },
            "algorithm": {"name": "gspo", "mini_batches": MINI_BATCHES},
            "optimizer": {"lr": LEARNING_RATE},
            "train": {"steps": 10**6},
            "log": {"dir": f"{scratch}/run", "rollouts": False},  # TRL writes none either
        }
        for name, table in changes.items():
            sections[name] = sections.get(name, {}) | table
        rows = [{"prompt": item.prompt} for item in make_items(2048, examples=examples)]
        given = CallInputs(rows=rows, functions=(reward,))
        with assemble.training(as_config(None, sections), given=given) as (run, model):
            # One end token, past the model's last output, so that every completion has the same length, as TRL's have.
            run.source.sampling = dataclasses.replace(run.source.sampling, stop_ids=(len(model.tokenizer),))
            groups = iter(run.source)
            while commands.wait():
                begin = time.perf_counter()
                metrics, _ = step(run, groups, PROMPTS)
                commands.answer({
                    "seconds": time.perf_counter() - begin,
                    "sample": metrics["time/sample"],
                    "score": metrics["time/score"],
                    "train": metrics["time/train"],
                    "completions": PROMPTS * GENERATIONS,
                    "length": metrics["completions/mean_length"],
                })  # fmt: skip


def main() -> None:
    """Serve rollout steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder that chain.write_model wrote")
    parser.add_argument("--changes", default="{}", help="configuration sections to change, as JSON")
    parser.add_argument("--examples", type=int, default=0, help="worked items before each question")
    options = parser.parse_args()
    commands = Commands()
    serve(commands, options.model, json.loads(options.changes), options.examples)


if __name__ == "__main__":
    main()
