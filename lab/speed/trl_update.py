"""The forward and backward pass of one update by TRL's GRPOTrainer, as a worker for update_trl.py (see paired.py).

TRL's own loss at the sequence level, on completions as its trainer holds them: prompts and completions in rows. It runs in
the environment of trl_step.py, with the options that were the fastest there (grouped_mm experts, no checkpointing, float32);
`--trial '{"torch_compile": true}'` compiles the model: faster for the dense one, slower for long rows of the mixture. TRL
has no padding-free option for GRPO, and these rows have no padding. All 16 rows at once (kept), 8 or 4 at a time took 1.03,
1.04 and 1.04 s in the same rounds; one at a time, 1.20 s.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from paired import Commands, update_options
from trl_step import make_arguments


def make_trainer(model_folder: str, trial: dict[str, Any]) -> Any:
    """A GRPOTrainer that has not trained."""
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    sparse = hasattr(AutoConfig.from_pretrained(model_folder), "num_experts")
    options = {"experts_implementation": "grouped_mm"} if sparse else {}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_folder, **options),
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=make_arguments(trial, f"{model_folder}/trl"),
        train_dataset=Dataset.from_list([{"prompt": "1+1"}] * 64),
        processing_class=AutoTokenizer.from_pretrained(model_folder),
    )
    trainer.current_gradient_accumulation_steps = 1  # its training loop sets it
    return trainer


def make_inputs(shape: tuple[int, int, int, int]) -> dict[str, Any]:
    """The completions as `_compute_loss` takes them. Without pi_old it takes the present policy, so nothing is clipped."""
    import torch
    from chain import random_groups

    groups = random_groups(*shape)
    prompts = torch.stack([prompt for prompt, completions in groups for _ in completions])
    completions = torch.stack([completion for _, completions in groups for completion in completions])
    signs = torch.arange(len(completions)) % 2
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": torch.ones_like(completions),
        "advantages": 1.0 - 2 * signs.float(),
        "num_items_in_batch": torch.tensor(completions.numel()),
    }


def serve(commands: Commands, options: argparse.Namespace) -> None:
    """Does the passes of one update a command."""
    import torch
    from chain import gradients

    torch.set_num_threads(options.threads)
    trainer, inputs = make_trainer(options.model, json.loads(options.trial)), make_inputs(tuple(options.shape))
    model = trainer.accelerator.prepare(trainer.model.train())
    count = len(inputs["prompt_ids"])
    rows = options.rows or count
    parts = [
        {key: value if value.ndim == 0 else value[i : i + rows] for key, value in inputs.items()}
        for i in range(0, count, rows)
    ]
    while commands.wait():
        begin = time.perf_counter()
        for part in parts:
            loss = trainer.compute_loss(model, part) * (len(part["prompt_ids"]) / count)
            trainer.accelerator.backward(loss)
        seconds = time.perf_counter() - begin
        gradient = gradients(trainer.model)
        trainer.model.zero_grad(set_to_none=True)
        commands.answer({"seconds": seconds, "gradients": gradient})


def main() -> None:
    """Serve updates."""
    parser = update_options(__doc__)
    parser.add_argument("--rows", type=int, help="completions in one forward pass; all by default")
    parser.add_argument("--trial", default="{}", help="GRPOConfig options to try, as JSON")
    options = parser.parse_args()
    serve(Commands(), options)


if __name__ == "__main__":
    main()
