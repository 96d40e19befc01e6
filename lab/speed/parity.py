"""Our objectives against those of TRL and verl, on the same likelihoods: value and gradient, in float64.

    python lab/speed/parity.py

The first run installs TRL 1.16.0 and verl 0.9.1 into .bench-parity; both are called as they are, on padded rows of their
own layout, with our clip ranges and constants. Advantages are given, not computed, unless the line is about them. Each
line has the largest relative difference of 5 draws; more than 1e-5 fails the run.

Where the two sides differ by more than float64's rounding, it is for these reasons:
- verl adds 1e-8 to completion lengths and to the variance of advantages, TRL's sapo keeps its temperatures in float32.
- verl's dppo_kl adds 1e-8 within its logarithms, ours keeps probabilities below 1 - 1e-7.
What had to be made equal first:
- verl's `gspo` averages over tokens unless told "seq-mean-token-mean". Its "vanilla" also caps terms with A < 0.
- The cap of cispo is TRL's `epsilon_high`, and verl's 1 + clip_ratio_high.
- A surrogate of the form sg[weight] A log pi has a value that means nothing: only its gradient is compared.
- minirl: verl has no mask by pi_theta/pi_old, so it is compared with a clip range that never binds. Its mask is tested
  against a loop in tests/objective.
- Corrections: TRL and verl weigh a completion by the product of its token ratios, which is `correction_ratio = "product"`
  here. The geometric mean, the default here, verl has as a mask only: the weight is ours, what it masks is compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from environment import make_environment

HERE = Path(__file__).resolve().parent
PACKAGES = (
    *("torch==2.13.0", "trl==1.16.0", "ray==2.60.0", "omegaconf==2.3.1", "tensordict==0.14.2", "hydra-core==1.3.8"),
    *("codetiming==1.4.0", "torchdata==0.11.0", "tomli-w==1.2.0"),
)
LENGTHS = [1, 30, 7, 12, 3, 25, 18, 5]
BUDGET = 32
NEVER = 1e9  # a bound that does not bind
SEQ_MEAN, TOKEN_MEAN, BUDGET_MEAN = "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"


class Draw(NamedTuple):
    """Log-probabilities as rows [S, T], A [S], the mask of what is not padding, and a correction's weights, or None."""

    logp: Any
    old: Any
    mu: Any
    A: Any
    mask: Any
    weight: Any


class Case(NamedTuple):
    """One line of the table. settings: of [algorithm]. theirs: a scalar loss from a `Draw`."""

    ours: str
    whose: str
    theirs: Callable[[Draw], Any]
    settings: dict[str, Any]
    has_value: bool = True


def padded(x: Any, y: Any) -> Any:
    """[N] as rows [S, T], padded with zeros on the right."""
    import torch

    rows = x.new_zeros(len(y.length), int(y.length.max()))
    place = torch.cat([torch.arange(int(n)) for n in y.length])
    return rows.index_put((y.completion, place), x)


def of_trl(loss_type: str, level: str, low: float = 0.0, high: float = 0.0, **more: float) -> Callable[[Draw], Any]:
    """TRL's loss: the trainer's _compute_loss, called with what it reads of a trainer."""
    from trl.experimental.gmpo import GMPOTrainer
    from trl.trainer.grpo_trainer import GRPOTrainer

    def loss(draw: Draw) -> Any:
        import torch

        zeros = torch.zeros_like(draw.mask, dtype=torch.long)
        accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, **_: x)
        weighs = draw.weight is not None
        trainer = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (draw.logp, torch.zeros_like(draw.logp), None),
            aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, beta=0.0, use_vllm=weighs,
            vllm_importance_sampling_correction=weighs, _entropy_bonus_enabled=False, current_gradient_accumulation_steps=1,
            loss_type=loss_type, importance_sampling_level=level, max_completion_length=BUDGET, accelerator=accelerator,
            epsilon_low=low, epsilon_high=high, model=SimpleNamespace(training=True), _metrics={"train": defaultdict(list)},
            args=SimpleNamespace(
                delta=more.get("delta"), use_bias_correction_kl=False, steps_per_generation=1,
                sapo_temperature_pos=more.get("tau_pos"), sapo_temperature_neg=more.get("tau_neg"),
            ),
        )  # fmt: skip
        inputs = {
            "prompt_ids": zeros[:, :1], "prompt_mask": zeros[:, :1], "completion_ids": zeros, "completion_mask": draw.mask,
            "advantages": draw.A, "old_per_token_logps": draw.old, "num_items_in_batch": draw.mask.sum(),
            "importance_sampling_ratio": draw.weight[:, :1] if weighs and level == "sequence" else draw.weight,
        }  # fmt: skip
        trainer_class = GMPOTrainer if loss_type == "gmpo" else GRPOTrainer
        return trainer_class._compute_loss(trainer, None, inputs)

    return loss


def of_verl(name: str, mode: str, low: float, high: float, old: str = "old", **more: Any) -> Callable[[Draw], Any]:
    """verl's registered policy loss. old: the likelihoods that its ratio divides by, "old" or "mu"."""
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.workers.config import ActorConfig

    def loss(draw: Draw) -> Any:
        config = ActorConfig(
            strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, clip_ratio=low, clip_ratio_low=low,
            clip_ratio_high=high, **more,
        )  # fmt: skip
        config.global_batch_info.update(dp_size=1, loss_scale_factor=BUDGET)
        wide = draw.A[:, None].expand_as(draw.logp)
        compute = POLICY_LOSS_REGISTRY[name]
        return compute(getattr(draw, old), draw.logp, wide, draw.mask, mode, config, rollout_is_weights=draw.weight)[0]

    return loss


def reinforce(mode: str, weight: str | None, cap: float, old: str = "old") -> Callable[[Draw], Any]:
    """verl's REINFORCE with pi_theta/pi_old as its weight, of each "token" or of the "sequence"; None: without."""
    correction = {"loss_type": "reinforce", "rollout_is": weight, "rollout_is_threshold": cap}
    from verl.workers.config import PolicyLossConfig

    return of_verl("bypass_mode", mode, 0.2, 0.2, old, policy_loss=PolicyLossConfig(rollout_correction=correction))


def cases() -> list[Case]:
    """The lines of the table of objectives."""
    from gspo.objective.algorithms import ALGORITHMS

    def ends(name: str) -> tuple[float, float]:
        row = ALGORITHMS[name]
        assert row.epsilon is not None and row.epsilon_high is not None
        return row.epsilon, row.epsilon_high

    lines = []
    for name, loss_type, level in (
        ("gspo", "grpo", "sequence"),
        ("grpo", "grpo", "token"),
        ("dr_grpo", "dr_grpo", "token"),
        ("dapo", "dapo", "token"),
        ("luspo", "luspo", "sequence"),
        ("ppo", "dapo", "token"),
    ):
        lines.append(Case(name, f"TRL {loss_type}, {level}", of_trl(loss_type, level, *ends(name)), {}))
    tau, delta = ALGORITHMS["sapo"].constants, ALGORITHMS["gmpo"].constants["delta"]
    lines.append(Case("sapo", "TRL sapo, token", of_trl("sapo", "token", **tau), {}))
    lines.append(Case("gmpo", "TRL experimental gmpo", of_trl("gmpo", "token", delta, delta), {}))
    lines.append(Case("cispo", "TRL cispo, token", of_trl("cispo", "token", high=5.0), {}, has_value=False))
    one_clip = {"clip_ratio_c": NEVER}  # not dual-clip PPO
    for name, theirs, mode, more in (
        ("gspo", "gspo", SEQ_MEAN, {}),
        ("gspo_token", "gspo", SEQ_MEAN, {}),
        ("grpo", "vanilla", SEQ_MEAN, one_clip),
        ("dr_grpo", "vanilla", BUDGET_MEAN, one_clip),
        ("dapo", "vanilla", TOKEN_MEAN, one_clip),
        ("ppo", "vanilla", TOKEN_MEAN, one_clip),
    ):
        lines.append(Case(name, f"verl {theirs}, {mode}", of_verl(theirs, mode, *ends(name), **more), {}))
    lines.append(Case("sapo", "verl sapo", of_verl("sapo", SEQ_MEAN, 0.2, 0.2, **tau), {}))
    lines.append(Case("gmpo", "verl geo_mean", of_verl("geo_mean", SEQ_MEAN, delta, delta), {}))
    lines.append(Case("cispo", "verl cispo", of_verl("cispo", TOKEN_MEAN, 1.0, 4.0), {}, has_value=False))
    for name in ("dppo_tv", "dppo_kl"):
        delta, w_max = ALGORITHMS[name].constants.values()
        theirs = of_verl(name, TOKEN_MEAN, delta, delta, "mu", clip_ratio_c=w_max)
        lines.append(Case(name, f"verl {name}", theirs, {}, has_value=False))
    unclipped = {"epsilon": 1.0, "epsilon_high": NEVER}
    of_token = reinforce(BUDGET_MEAN, "token", NEVER, "mu")
    lines.append(Case("minirl", "verl reinforce, unclipped", of_token, unclipped, has_value=False))
    dual = {"constants": {"clip_c": 1.5}}  # the default would rarely bind
    lines.append(Case("grpo_dual", "TRL grpo, token, delta", of_trl("grpo", "token", *ends("grpo"), delta=1.5), dual))
    vanilla = of_verl("vanilla", SEQ_MEAN, *ends("grpo"), clip_ratio_c=1.5)
    lines.append(Case("grpo_dual", f"verl vanilla, {SEQ_MEAN}", vanilla, dual))
    lines.append(Case("reinforce", "verl reinforce", reinforce(SEQ_MEAN, None, NEVER), {}))
    cap = ALGORITHMS["reinforce_is"].constants["w_max"]
    weighted = reinforce(SEQ_MEAN, "sequence", cap)
    lines.append(Case("reinforce_is", "verl reinforce, sequence", weighted, {}, has_value=False))
    for correction in ("tis", "icepop", "seq_mis"):
        # Bounds as wide as the mismatch that `compare` draws.
        weighed = {"correction": correction, "old_logprobs": "recompute", "correction_low": 0.5, "correction_high": 2.0}
        lines.append(Case("gspo", "TRL grpo, sequence", of_trl("grpo", "sequence", *ends("gspo")), weighed))
        vanilla = of_verl("vanilla", SEQ_MEAN, *ends("grpo"), **one_clip)
        lines.append(Case("grpo", f"verl vanilla, {SEQ_MEAN}", vanilla, weighed))
    return lines


def compare(case: Case, seed: int) -> tuple[float, float]:
    """Largest difference of value, as a share of our terms' size, and of gradient, as a share of our largest."""
    import torch

    from gspo.config.algorithm import resolve
    from gspo.config.policy import AlgorithmConfig
    from gspo.learner.objective import PolicyObjective
    from gspo.objective.completions import Completions
    from gspo.types import Batch, Outputs

    draw = torch.Generator().manual_seed(seed)
    y, n = Completions.of(torch.tensor(LENGTHS)), sum(LENGTHS)
    old = -0.05 - 3 * torch.rand(n, generator=draw, dtype=torch.float64)
    logp = (old + 0.4 * torch.randn(n, generator=draw, dtype=torch.float64)).clamp(max=-0.01)
    mu = (old + y.spread(torch.randn(len(LENGTHS), generator=draw, dtype=torch.float64))).clamp(max=-0.01)
    A = torch.randn(len(LENGTHS), generator=draw, dtype=torch.float64)
    row, config, _ = resolve(AlgorithmConfig(name=case.ours, **case.settings))
    mine = logp.clone().requires_grad_()
    batch = Batch(None, None, None, y.completion, y.length, mu, old, A)  # type: ignore[arg-type]
    terms, stats = PolicyObjective(row, config, BUDGET).terms(Outputs(mine, torch.zeros(n)), batch)
    divisor = {"completions": len(LENGTHS), "tokens": n, "budget": len(LENGTHS) * BUDGET}[row.counts]
    ours = terms.sum() / divisor
    copy = logp.clone().requires_grad_()
    weight = padded(y.spread(stats["weight"]), y) if config.correction != "none" else None
    mask = padded(torch.ones(n, dtype=torch.float64), y)
    value = case.theirs(Draw(padded(copy, y), padded(old, y), padded(mu, y), A, mask, weight))
    a, b = torch.autograd.grad(ours, mine)[0], torch.autograd.grad(value, copy)[0]
    assert a.abs().max() > 0, case.ours
    size = terms.detach().abs().sum() / divisor  # terms of both signs may add up to next to nothing
    return float((ours - value).detach().abs() / size), float((a - b).abs().max() / a.abs().max())


def parts(seed: int) -> dict[tuple[str, str], tuple[Any, Any]]:
    """What objectives are made of, ours and verl's: corrections, advantages, PPO's values."""
    import torch
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights, compute_rollout_rejection_mask

    from gspo.objective.advantages import group_advantages
    from gspo.objective.completions import Completions
    from gspo.objective.corrections import CORRECTIONS, ratio
    from gspo.objective.ppo import gae, value_loss, whiten

    draw = torch.Generator().manual_seed(seed)
    y, S, n = Completions.of(torch.tensor(LENGTHS)), len(LENGTHS), sum(LENGTHS)
    mask = padded(torch.ones(n, dtype=torch.float64), y)
    old = torch.randn(n, generator=draw, dtype=torch.float64)
    mu = old + y.spread(torch.randn(S, generator=draw, dtype=torch.float64)) + 0.3 * old
    gap, pairs = padded(old - mu, y), {}
    for name, low, high, bound in (("tis", None, 2.0, 2.0), ("icepop", 0.5, 5.0, "0.5_5.0")):
        theirs = compute_rollout_correction_weights(gap, mask, "token", bound)[0]
        weight = CORRECTIONS[name](ratio("token", "mean", old, mu, y), low, high)
        pairs[name, "verl rollout correction, token"] = padded(weight, y), theirs
    theirs = compute_rollout_correction_weights(gap, mask, "sequence", 2.0)[0]
    weight = CORRECTIONS["tis"](ratio("sequence", "product", old, mu, y), None, 2.0)
    pairs["tis, product", "verl rollout correction, sequence"] = padded(y.spread(weight), y), theirs
    accepted = (CORRECTIONS["seq_mis"](ratio("sequence", "mean", old, mu, y), None, 2.0) > 0).double()
    # verl bounds mu/pi_old from below where we bound pi_old/mu from above
    theirs = compute_rollout_rejection_mask(gap, mask, "seq_mean_k1", f"0.5_{NEVER}")[0]
    pairs["seq_mis (what is kept)", "verl rejection, seq_mean_k1"] = padded(y.spread(accepted), y), theirs
    rewards, values = (torch.randn(k, generator=draw, dtype=torch.float64) for k in (S, n))
    by_token = padded(torch.zeros(n, dtype=torch.float64), y)
    by_token[torch.arange(S), y.length - 1] = rewards
    group = torch.arange(S) // 4
    for scale in ("group", "none"):
        A = group_advantages(rewards, group, scale)
        theirs = core_algos.compute_grpo_outcome_advantage(by_token, mask, group.tolist(), 0.0, scale == "group")[0]
        pairs[f"advantages, {scale}", "verl grpo"] = padded(y.spread(A), y), theirs
    A, returns = gae(rewards, values, y, 0.99, 0.95)
    theirs = core_algos.compute_gae_advantage_return(by_token, padded(values, y), mask, 0.99, 0.95)
    pairs["gae, whitened", "verl gae"] = padded(whiten(A), y), theirs[0] * mask
    pairs["returns", "verl gae"] = padded(returns, y), theirs[1] * mask
    new = (values + torch.randn(n, generator=draw, dtype=torch.float64)).requires_grad_()
    mine = value_loss(new, values, returns, 0.2).mean()
    theirs = core_algos.compute_value_loss(padded(new, y), padded(returns, y), padded(values, y), mask, 0.2)[0]
    pairs["value loss", "verl value loss"] = mine.detach(), theirs.detach()
    pairs["value loss, gradient", "verl value loss"] = tuple(torch.autograd.grad(x, new)[0] for x in (mine, theirs))
    return pairs


def work() -> None:
    """Runs inside the environment that has TRL and verl."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    sys.path.insert(0, str(HERE.parents[1] / "src"))
    worst = 0.0
    print(f"{'ours':23} {'independent implementation':38} {'value':>9} {'gradient':>9}")
    for case in cases():
        value, gradient = (max(each) for each in zip(*(compare(case, seed) for seed in range(5))))
        worst = max(worst, gradient, value if case.has_value else 0.0)
        name = " + ".join([case.ours, *([case.settings["correction"]] if "correction" in case.settings else [])])
        print(f"{name:23} {case.whose:38} {f'{value:9.1e}' if case.has_value else '        -'} {gradient:9.1e}")
    print()
    for name, whose in parts(0):
        pairs = [parts(seed)[name, whose] for seed in range(5)]
        difference = max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)
        worst = max(worst, difference)
        print(f"{name:23} {whose:38} {difference:9.1e}")
    sys.exit(worst > 1e-5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().worker:
        work()
    else:
        python = make_environment(".bench-parity", PACKAGES, ["verl==0.9.1"])
        sys.exit(subprocess.run([python, __file__, "--worker"]).returncode)
