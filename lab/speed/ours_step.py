"""Rollout steps of a task by gspo, as a worker for rollout_step.py (see paired.py): `gspo train`'s own path."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from typing import Any

from paired import THREADS, Commands, peak_gib
from step_tasks import GENERATIONS, MINI_BATCHES, TASKS, Task


def serve(commands: Commands, model_folder: str, task: Task, changes: dict[str, dict[str, Any]]) -> None:
    """Does one step of a training run a command. `changes`: configuration sections to change."""
    import torch

    from gspo.assembly import assemble
    from gspo.assembly.call_inputs import CallInputs
    from gspo.config.files import as_config
    from gspo.training.step import step

    torch.set_num_threads(THREADS)

    with tempfile.TemporaryDirectory() as scratch:
        sections: dict[str, dict[str, Any]] = {
            "model": {"path": model_folder, "device": "cpu"},
            "task": {"source": "(given)"},
            "rollout": {
                "num_prompts": task.prompts,
                "num_generations": GENERATIONS,
                "max_completion_length": task.completion_tokens,
                "temperature": task.temperature,
            },
            "algorithm": {
                "name": "gspo",
                "mini_batches": MINI_BATCHES,
                "epsilon": task.clip[0],
                "epsilon_high": task.clip[1],
            },
            "optimizer": {"lr": task.lr},
            "train": {"steps": 10**6},
            "log": {"dir": f"{scratch}/run", "rollouts": False},  # TRL writes none either
        }
        for name, table in changes.items():
            sections[name] = sections.get(name, {}) | table
        given = CallInputs(rows=task.rows(), functions=(task.scores,))
        with assemble.training(as_config(None, sections), given=given) as (run, model):
            if not task.ends:  # one end token past the model's last output: every completion has the same length, as TRL's
                run.source.sampling = dataclasses.replace(run.source.sampling, stop_ids=(len(model.tokenizer),))
            groups = iter(run.source)
            while commands.wait():
                begin = time.perf_counter()
                metrics, _ = step(run, groups, task.prompts)
                commands.answer({
                    "seconds": time.perf_counter() - begin,
                    "sample": metrics["time/sample"],
                    "score": metrics["time/score"],
                    "train": metrics["time/train"],
                    "completions": task.prompts * GENERATIONS,
                    "length": metrics["completions/mean_length"],
                    "reward": metrics["reward"],
                    "peak_gib": peak_gib(),
                })  # fmt: skip


def main() -> None:
    """Serve rollout steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--changes", default="{}", help="configuration sections to change, as JSON")
    options = parser.parse_args()
    commands = Commands()
    serve(commands, options.model, TASKS[options.task], json.loads(options.changes))


if __name__ == "__main__":
    main()
