"""Our objectives against those of TRL and verl, on the same likelihoods: value and gradient, in float64.

    python benchmarks/parity.py

The first run installs TRL 1.16.0 and verl 0.9.1 into .bench-parity; both are called as they are, on padded rows of their
own layout, with our clip ranges and constants. Advantages are given, not computed.

Known differences, met here by giving both sides the same numbers:
- verl's `gspo` averages over tokens unless told "seq-mean-token-mean"; its dppo and TRL's and verl's cispo, like ours,
  have a surrogate whose value means nothing: only its gradient is compared.
- TRL's `epsilon_high` of cispo is the cap itself (5), verl's is the cap less 1.
- verl's dppo_kl adds 1e-8 within its logarithms, ours clamps probabilities at 1 - 1e-7.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from environment import make_environment

HERE = Path(__file__).resolve().parent
PACKAGES = (
    *("torch==2.13.0", "trl==1.16.0", "ray==2.60.0", "omegaconf==2.3.1", "tensordict==0.14.2", "hydra-core==1.3.8"),
    *("codetiming==1.4.0", "torchdata==0.11.0", "tomli-w==1.2.0"),
)
LENGTHS = [1, 30, 7, 12, 3, 25, 18, 5]
BUDGET = 32


def padded(x: Any, y: Any) -> Any:
    """[N] as rows [S, T], padded with zeros on the right."""
    import torch

    rows = x.new_zeros(len(y.length), int(y.length.max()))
    place = torch.cat([torch.arange(int(n)) for n in y.length])
    return rows.index_put((y.reply, place), x)


def of_trl(row: Any, loss_type: str, level: str, **limits: float) -> Callable[..., Any]:
    """TRL's loss: GRPOTrainer._compute_loss, called with what it reads of a trainer."""
    from trl.trainer.grpo_trainer import GRPOTrainer

    def loss(logp: Any, old: Any, A: Any, y: Any, mask: Any) -> Any:
        import torch

        zeros = torch.zeros_like(mask, dtype=torch.long)
        accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x)
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
            aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, beta=0.0, use_vllm=False,
            vllm_importance_sampling_correction=False, _entropy_bonus_enabled=False, current_gradient_accumulation_steps=1,
            loss_type=loss_type, importance_sampling_level=level, max_completion_length=BUDGET, accelerator=accelerator,
            epsilon_low=limits.get("epsilon", 0.0), epsilon_high=limits.get("epsilon_high", 0.0),
            model=SimpleNamespace(training=True), _metrics={"train": defaultdict(list)},
            args=SimpleNamespace(
                delta=None, use_bias_correction_kl=False, steps_per_generation=1,
                sapo_temperature_pos=limits.get("tau_pos"), sapo_temperature_neg=limits.get("tau_neg"),
            ),
        )  # fmt: skip
        inputs = {
            "prompt_ids": zeros[:, :1], "prompt_mask": zeros[:, :1], "completion_ids": zeros, "completion_mask": mask,
            "advantages": A, "old_per_token_logps": old, "num_items_in_batch": mask.sum(),
        }  # fmt: skip
        return GRPOTrainer._compute_loss(trainer, None, inputs)

    return loss


def of_verl(name: str, mode: str, low: float, high: float, **more: Any) -> Callable[..., Any]:
    """verl's registered policy loss."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.workers.config import ActorConfig

    def loss(logp: Any, old: Any, A: Any, y: Any, mask: Any) -> Any:
        config = ActorConfig(
            strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, clip_ratio=low, clip_ratio_low=low,
            clip_ratio_high=high, **more,
        )  # fmt: skip
        config.global_batch_info.update(dp_size=1, loss_scale_factor=BUDGET)
        wide = A[:, None].expand_as(logp)
        return POLICY_LOSS_REGISTRY[name](old, logp, wide, mask, mode, config)[0]

    return loss


def cases() -> list[tuple[str, str, Callable[..., Any], bool]]:
    """Our row, whose implementation, its loss, and whether its value can be compared."""
    from gspo.objective.algorithms import ALGORITHMS

    def clip(name: str) -> dict[str, float]:
        row = ALGORITHMS[name]
        return {"epsilon": row.epsilon or 0.0, "epsilon_high": row.epsilon_high or 0.0, **row.constants}

    def ends(name: str) -> tuple[float, float]:
        row = ALGORITHMS[name]
        return row.epsilon or 0.0, row.epsilon_high or 0.0

    sapo = dict(ALGORITHMS["sapo"].constants)
    replies, tokens, budget = "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"
    found = []
    for name, loss_type, level in (
        ("gspo", "grpo", "sequence"), ("grpo", "grpo", "token"), ("dr_grpo", "dr_grpo", "token"), ("dapo", "dapo", "token"),
        ("luspo", "luspo", "sequence"), ("sapo", "sapo", "token"), ("ppo", "dapo", "token"),
    ):  # fmt: skip
        found.append((name, f"TRL {loss_type}, {level}", of_trl(name, loss_type, level, **clip(name)), True))
    found.append(("cispo", "TRL cispo, token", of_trl("cispo", "cispo", "token", epsilon_high=5.0), False))
    never = {"clip_ratio_c": 1e9}  # verl's "vanilla" is dual-clip PPO, which caps terms with A < 0
    for name, theirs, mode, more in (
        ("gspo_token", "gspo", replies, {}), ("grpo", "vanilla", replies, never), ("dr_grpo", "vanilla", budget, never),
        ("dapo", "vanilla", tokens, never), ("ppo", "vanilla", tokens, never),
    ):  # fmt: skip
        found.append((name, f"verl {theirs}, {mode}", of_verl(theirs, mode, *ends(name), **more), True))
    found.append(("sapo", "verl sapo", of_verl("sapo", replies, 0.2, 0.2, **sapo), True))
    found.append(("gmpo", "verl geo_mean", of_verl("geo_mean", replies, 0.4, 0.4), True))
    found.append(("cispo", "verl cispo", of_verl("cispo", tokens, 1.0, 4.0), False))
    for name in ("dppo_tv", "dppo_kl"):
        constants = ALGORITHMS[name].constants
        theirs = of_verl(name, tokens, constants["delta"], constants["delta"], clip_ratio_c=constants["w_max"])
        found.append((name, f"verl {name}", theirs, False))
    return found


def compare(name: str, theirs: Callable[..., Any], seed: int) -> tuple[float, float]:
    """Largest difference of value and of gradient, as a share of ours."""
    import torch

    from gspo.objective.algorithms import ALGORITHMS
    from gspo.objective.replies import Replies

    draw = torch.Generator().manual_seed(seed)
    y = Replies.of(torch.tensor(LENGTHS))
    n = sum(LENGTHS)
    old = -0.05 - 3 * torch.rand(n, generator=draw, dtype=torch.float64)
    logp = (old + 0.4 * torch.randn(n, generator=draw, dtype=torch.float64)).clamp(max=-0.01)
    A = torch.randn(len(LENGTHS), generator=draw, dtype=torch.float64)
    row = ALGORITHMS[name]
    given = dict.fromkeys(row.likelihoods, old)
    limits = {} if row.epsilon is None else {"e_low": row.epsilon, "e_high": row.epsilon_high}
    mine = logp.clone().requires_grad_()
    divisor = {"replies": len(LENGTHS), "tokens": n, "budget": len(LENGTHS) * BUDGET}[row.counts]
    ours = row.loss(logp=mine, A=A, y=y, **given, **limits, **row.constants).loss.sum() / divisor
    other = logp.clone().requires_grad_()
    mask = padded(torch.ones(n, dtype=torch.float64), y)
    value = theirs(padded(other, y), padded(old, y), A, y, mask)
    a, b = torch.autograd.grad(ours, mine)[0], torch.autograd.grad(value, other)[0]
    return float((ours - value).abs() / ours.abs()), float((a - b).abs().max() / a.abs().max())


def work() -> None:
    """Runs inside the environment that has TRL and verl."""
    sys.path.insert(0, str(HERE.parent / "src"))
    print(f"{'ours':11} {'independent implementation':38} {'value':>9} {'gradient':>9}   (largest of 5 draws, relative)")
    worst = 0.0
    for name, whose, theirs, has_value in cases():
        found = [compare(name, theirs, seed) for seed in range(5)]
        value, gradient = (max(each) for each in zip(*found))
        worst = max(worst, gradient, value if has_value else 0.0)
        print(f"{name:11} {whose:38} {f'{value:9.1e}' if has_value else '        -'} {gradient:9.1e}")
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().worker:
        work()
    else:
        python = make_environment(".bench-parity", PACKAGES, ["verl==0.9.1"])
        sys.exit(subprocess.run([python, __file__, "--worker"]).returncode)
