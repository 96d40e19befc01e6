"""gspo's objectives as policy losses of verl: actor.policy_loss.loss_mode = "gspo-paper", and so on for each algorithm.

    pip install verl && pip install -e . && python examples/verl_gspo.py

Import this file in the worker (verl's `external_lib` does it). Run as a program it calls the registered loss with tensors of
verl's layout, as the actor does, and compares it with verl's own.
"""

import dataclasses

import torch
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, register_policy_loss
from verl.workers.config import ActorConfig, PolicyLossConfig

from gspo import dropin

# verl's settings of the losses that are replaced here.
REPLACED = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg", "loss_scale_factor")
REPLACED_LOSS = ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")


def check(name: str, algorithm: str, config, loss_agg_mode: str) -> None:
    """Raises ValueError for settings of verl that would have no effect."""
    own = ("seq-mean-token-mean",) if dropin.counts(algorithm) == "completions" else ()
    if loss_agg_mode not in ("", "token-mean", *own):  # token-mean: verl's default, which its entropy and KL read too
        raise ValueError(f"{name}: actor.loss_agg_mode = {loss_agg_mode!r}: has no effect on this loss: leave it out")
    parts = ((config, ActorConfig, REPLACED), (getattr(config, "policy_loss", None), PolicyLossConfig, REPLACED_LOSS))
    for part, usual, names in parts:
        for field in dataclasses.fields(usual):
            value = getattr(part, field.name, field.default)
            if field.name in names and value != field.default:
                text = f"{name}: {field.name} = {value!r}: has no effect on this loss: give settings to register()"
                raise ValueError(text)


def register(name: str, algorithm: str, **settings) -> None:
    """Registers `algorithm` as verl's policy loss `name`. settings: of gspo's [algorithm]; verl's are refused."""
    size = "batch_num_tokens" if dropin.counts(algorithm) == "tokens" else "global_batch_size"

    @register_policy_loss(name)
    def policy_loss(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="", config=None, rollout_is_weights=None
    ):
        if rollout_is_weights is not None:
            raise ValueError(f"{name}: turn verl's rollout_is off: its weights do not reach this loss")
        check(name, algorithm, config, loss_agg_mode)
        batch = {} if config is None else config.global_batch_info
        whole = batch.get(size)
        # verl adds micro-batches up, so each is a sum divided by the count of the whole update
        count = float(whole) / batch.get("dp_size", 1) if whole else None
        loss, metrics = dropin.loss(
            algorithm, log_prob, old_log_prob, advantages, response_mask, denominator=count, **settings
        )
        kl = float(((old_log_prob - log_prob).detach() * response_mask).sum() / response_mask.sum().clamp(min=1))
        # grpo_dual's bound at A < 0, verl's pg_clipfrac_lower, is in pg_clipfrac too
        actor = {"actor/pg_clipfrac": metrics["clip_ratio/tokens"], "actor/pg_clipfrac_lower": 0.0, "actor/ppo_kl": kl}
        return loss, actor


register("gspo-paper", "gspo")
register("gspo-wide", "gspo", epsilon=3e-3, epsilon_high=4e-3)


def main() -> None:
    """Calls the registered loss and verl's own on the same tensors."""
    g = torch.Generator().manual_seed(0)
    mask = (torch.arange(40) < torch.randint(5, 40, (16, 1), generator=g)).float()
    old = -3 * torch.rand(16, 40, generator=g)
    logp = (old + 0.002 * torch.randn(16, 40, generator=g)).requires_grad_()
    A = torch.randn(16, 1, generator=g).expand(16, 40)
    found = {}
    for name, clip in (("gspo-paper", {}), ("gspo", {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4})):
        config = ActorConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1, rollout_n=1, **clip)
        config.global_batch_info.update(dp_size=1, global_batch_size=16)
        loss, metrics = POLICY_LOSS_REGISTRY[name](old, logp, A, mask, "seq-mean-token-mean", config)
        (found[name],) = torch.autograd.grad(loss, logp)
        print(f"{name:12} loss {float(loss):+.6f}  clipped {metrics['actor/pg_clipfrac']:.1%}")
    print(f"largest difference of the gradients: {float((found['gspo-paper'] - found['gspo']).abs().max()):.1e}")


if __name__ == "__main__":
    main()
