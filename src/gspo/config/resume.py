"""Which settings may differ between a run and its resumption."""

from __future__ import annotations

from gspo.config.files import to_dict
from gspo.config.schema import Config

# May differ between a run and its resumption: where it is, what it shows, when it stops.
FREE = {
    *("log", "guard", "serve", "model.device", "reward.timeout", "reward.workers"),
    *("reward_model.device", "reward_model.url", "reward_model.batch_size", "reward_model.timeout", "reward_model.retries"),
    *("judge.url", "judge.cache", "judge.max_concurrent", "judge.timeout", "judge.retries", "judge.key_variable"),
    *("reward_model.max_concurrent", "reward_model.key_variable"),
    *("sampler.batch_size", "sampler.url", "sampler.python", "sampler.exchange", "sampler.timeout"),
    *("eval.every", "eval.num_generations", "eval.temperature", "eval.top_p", "eval.top_k"),
    *("train.steps", "train.save_every", "train.keep_checkpoints", "train.micro_batch_tokens"),
    *("train.gradient_checkpointing", "train.max_bad_updates", "train.offload_optimizer", "train.offload_reference"),
}


def same_run(old: Config, new: Config) -> None:
    """Raises ValueError where `new` would continue another run than `old`."""
    for section, table in to_dict(new).items():
        before = to_dict(old)[section]
        for name in sorted({*table, *before}):
            key = f"{section}.{name}"
            if before.get(name) != table.get(name) and not {section, key} & FREE:
                raise ValueError(
                    f"{key} = {table.get(name)!r} cannot be changed by --resume: the run began with {before.get(name)!r}. "
                    "Set it back, or start another run from the checkpoint's model"
                )
