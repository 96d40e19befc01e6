"""Rollout steps of a task by TRL's GRPOTrainer, as a worker for rollout_step.py (see paired.py).

It runs in an environment of its own, which `trl_environment` installs: TRL is no dependency of ours.

What was tried to give TRL its best on a CPU, on two shared cores and the chain task, against the options below:
- `generate` (kept) against continuous batching, its cache sized by hand: sampling takes 4 to 6 times as long. Left to
  itself it takes most of the machine's memory for its cache.
- grouped_mm experts (kept) against eager: a step takes 1.2 times as long; against batched_mm: 30 times.
- torch_compile: a step takes 0.9 times as long once compiled. rollout_step.py times it as a second TRL.
- a static cache, unfused AdamW: no difference to be seen. Gradient checkpointing, TRL's default: 1.1 times as long.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from environment import make_environment  # noqa: E402
from paired import THREADS, Commands, peak_gib  # noqa: E402
from step_tasks import GENERATIONS, MINI_BATCHES, TASKS, Task  # noqa: E402

TORCH, TRL = "torch==2.13.0", "trl==1.16.0"


def trl_environment() -> Path:
    """The Python of the environment with TRL, installed on first use."""
    return make_environment(".bench-trl", [TORCH, TRL])


def make_arguments(trial: dict[str, Any], scratch: str, task: Task = TASKS["chain"]) -> Any:
    """GSPO in TRL, as the paper has it, with everything off that is not the step itself."""
    from trl import GRPOConfig

    options = {
        "output_dir": scratch,
        # GSPO: the sequence ratio, the mean over completions, and 4 updates a rollout batch.
        "importance_sampling_level": "sequence",
        "loss_type": "grpo",
        "epsilon": task.clip[0],
        "epsilon_high": task.clip[1],
        "beta": 0.0,
        "num_iterations": 1,
        "router_aux_loss_coef": 0.0,
        # All completions are sampled at once, then trained on in 4 updates. As a rollout batch gives several updates, TRL
        # computes pi_old itself, by one more forward pass.
        "num_generations": GENERATIONS,
        "per_device_train_batch_size": task.prompts * GENERATIONS // MINI_BATCHES,
        "gradient_accumulation_steps": 1,
        "steps_per_generation": MINI_BATCHES,
        "max_completion_length": task.completion_tokens,
        "temperature": task.temperature,
        "learning_rate": task.lr,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "max_steps": 10**6,
        # float32 on the CPU. TRL's defaults, bfloat16 and gradient checkpointing, are slower here.
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_strategy": "no",
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return GRPOConfig(**{**options, **trial})


def make_trainer(
    commands: Commands, model_folder: str, scratch: str, task: Task, experts: str, trial: dict[str, Any]
) -> Any:
    """A GRPOTrainer that does one rollout step a command."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    torch.set_num_threads(THREADS)
    seconds = {"sample": 0.0, "score": 0.0}

    class Timed(GRPOTrainer):
        """Adds up the seconds of a rollout step's parts."""

        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            result = super()._generate_single_turn(*args, **kwargs)
            seconds["sample"] += time.perf_counter() - begin
            return result

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            begin, sampled = time.perf_counter(), seconds["sample"]
            result = super()._generate_and_score_completions(inputs)
            seconds["score"] += time.perf_counter() - begin - (seconds["sample"] - sampled)
            self.completions = result["completion_mask"].sum(1).tolist()
            return result

    class Turns(TrainerCallback):
        """Times from a command to the end of the step's last update, fetching of rows included."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = not self._wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % MINI_BATCHES:
                return
            total = time.perf_counter() - self.begin
            train = total - seconds["sample"] - seconds["score"]
            length = sum(trainer.completions) / len(trainer.completions)
            commands.answer(
                {"seconds": total, **seconds, "train": train, "completions": len(trainer.completions), "length": length}
                | {"reward": sum(rewards) / len(rewards), "peak_gib": peak_gib()}
            )
            control.should_training_stop = not self._wait()

        def _wait(self) -> bool:
            more = commands.wait()
            seconds.update(sample=0.0, score=0.0)
            self.begin = time.perf_counter()
            return more

    rewards: list[float] = []

    def reward(completions: list[Any], **columns: Any) -> list[float]:
        rewards[:] = task.scores(completions, **columns)
        return list(rewards)

    options = {} if task.pretrained else {"experts_implementation": experts}
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, **options)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    if not task.ends:
        # Every completion must have the same length as in our program. An end token past the model's last output can never
        # be sampled; min_new_tokens would do it too, but by changing the distribution that is sampled from.
        tokenizer.add_special_tokens({"eos_token": "<never>"})
        model.config.eos_token_id = model.generation_config.eos_token_id = None
    trainer = Timed(
        model=model,
        reward_funcs=reward,
        args=make_arguments(trial, scratch, task),
        train_dataset=Dataset.from_list(task.rows()),
        processing_class=tokenizer,
        callbacks=[Turns()],
    )
    return trainer


def main() -> None:
    """Serve rollout steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("scratch", help="folder for what the trainer writes")
    parser.add_argument("--experts", default="grouped_mm", choices=("grouped_mm", "batched_mm", "eager"))
    parser.add_argument("--trial", default="{}", help="GRPOConfig options to try, as JSON")
    options = parser.parse_args()
    commands = Commands()
    task = TASKS[options.task]
    make_trainer(commands, options.model, options.scratch, task, options.experts, json.loads(options.trial)).train()


if __name__ == "__main__":
    main()
