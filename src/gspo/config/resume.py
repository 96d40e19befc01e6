"""Settings that may differ between a run and its resumption."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from gspo.config.files import to_dict
from gspo.config.names import all_keys, nearest_key
from gspo.config.schema import STAGE, Config
from gspo.config.stages import longest
from gspo.config.values import shown
from gspo.safe import without_secrets

# May always differ: where a run executes, what it reports, when it stops.
FREE = {
    *("log", "guard", "serve", "scale", "model.device", "reward.timeout", "reward.workers", "reward.memory", "code.sandbox"),
    *("reward_model.device", "reward_model.url", "reward_model.batch_size", "reward_model.timeout", "reward_model.retries"),
    *("judge.url", "judge.cache", "judge.max_concurrent", "judge.timeout", "judge.retries", "judge.key_variable"),
    *("reward_model.max_concurrent", "reward_model.key_variable", "teacher.url", "teacher.key_variable", "teacher.timeout"),
    *("teacher.retries", "teacher.max_concurrent"),
    *("sampler.batch_size", "sampler.engines", "sampler.urls", "sampler.python", "sampler.weight_dir"),
    *("sampler.timeout", "sampler.start_timeout", "sampler.sync_timeout", "sampler.weight_transfer", "sampler.sleep_level"),
    *("sampler.speculative_config", "sampler.weight_check_limit"),
    *("eval.every", "eval.num_generations", "eval.temperature", "eval.top_p", "eval.top_k"),
    *("train.steps", "train.save_every", "train.keep_checkpoints", "train.keep_best", "train.micro_batch_tokens"),
    *("train.gradient_checkpointing", "train.max_skipped_updates", "train.offload_optimizer", "train.offload_reference"),
}
# May differ if `allow` names them: every update reads them anew, and nothing in a checkpoint depends on them.
ON_PURPOSE = ("optimizer.lr", "optimizer.schedule", "optimizer.min_lr", "optimizer.warmup")


def check_allowed(keys: Collection[str]) -> None:
    """Checks that `keys` may be changed on purpose. Raises ValueError with the reason if one may not."""
    if isinstance(keys, (str, bytes)) or not all(isinstance(key, str) for key in keys):
        raise ValueError(f'allow = {shown(keys)}: expected a list of keys, as in allow=["optimizer.lr"]')
    for key in keys:
        if key in ON_PURPOSE:
            continue
        if key not in all_keys():
            raise ValueError(f"allow = {key!r}: unknown key{nearest_key(key)}; allowed are {', '.join(ON_PURPOSE)}")
        if may_differ(key):
            raise ValueError(f"allow = {key!r}: a resumed run may change it without that; leave it out")
        known = f"allowed are {', '.join(ON_PURPOSE)}"
        raise ValueError(f"allow = {key!r}: would make it another run; {known}. Start one from the checkpoint's model")


def same_run(old: Config, new: Config, allowed: Collection[str] = (), begun: int = 0) -> list[str]:
    """Returns the changes from `old` to `new` in words. Raises ValueError if `new` would continue a different run, with the
    first such option in section order: others may follow from it, as a clip range from the algorithm. Secrets may change:
    none is kept for a comparison. `allowed`: keys that may change on purpose. `begun`: the last step that was sampled for;
    later stages may change.
    """
    changes = []
    limits = [config.eval.max_completion_length or longest(config.rollout, config.stage)[1] for config in (old, new)]
    past = [[stage for stage in config.stage if stage.at <= begun] for config in (old, new)]
    for key, was, is_now in changed(old, new):
        if key == STAGE:
            key = f"[[{STAGE}]]"
            if past[0] != past[1]:
                begin = f"{key} up to step {begun} cannot be changed in a resumed run: it was {was!r}"
                raise ValueError(f"{begin}. Set it back; stages after step {begun} may change")
            if limits[0] != limits[1] and new.eval.every:
                raise ValueError(
                    f"{key}: evaluations would allow {limits[1]} tokens where they allowed {limits[0]}: set "
                    f"eval.max_completion_length = {limits[0]} to measure the same"
                )
        elif key == "eval.max_completion_length" and limits[0] == limits[1]:
            continue
        elif not may_differ(key, allowed):
            way = f', or allow it by --allow {key} (from Python: allow=["{key}"])' if key in ON_PURPOSE else ""
            remedy = f"Set it back{way}, or start another run from the checkpoint's model"
            raise ValueError(f"{key} = {is_now!r} cannot be changed in a resumed run: it began with {was!r}. {remedy}")
        changes.append(f"{key} = {is_now!r} (was {was!r})")
    return changes


def changed(old: Config, new: Config) -> Iterator[tuple[str, Any, Any]]:
    """Yields each setting that differs, with its old and new value, in section order. Secrets are left out."""
    before, after = without_secrets(to_dict(old)), without_secrets(to_dict(new))
    for key in all_keys():
        section, _, name = key.partition(".")
        was, is_now = before[section].get(name), after[section].get(name)
        if was != is_now:
            yield key, was, is_now
    if old.stage != new.stage:
        yield STAGE, before.get(STAGE, []), after.get(STAGE, [])


def may_differ(key: str, allowed: Collection[str] = ()) -> bool:
    """Whether a setting may differ between a run and its resumption."""
    return bool({key.partition(".")[0], key} & {*FREE, *allowed})
