"""What a run takes from a probe: `gspo train CONFIG.toml --from-probe DIR`. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gspo.safe import without_secrets

FILE = "probe.json"
OWN = ("name", "epsilon", "epsilon_high", "constants", "scale_rewards", "old_logprobs", "router_replay", "correction")
"""Fields of [algorithm] that a probe recommends."""
FREE = (
    "log", "train", "eval", "guard", "serve", "scale", "code.sandbox", "refresh", "stage", "task.seed",
    "task.eval_source", "task.eval_split", "reward.workers", "reward.timeout", "reward.memory", "optimizer.warmup",
    "optimizer.schedule", "optimizer.min_lr", "sampler.engines", "sampler.urls", "sampler.python", "sampler.exchange",
    "sampler.timeout", "sampler.batch_size", "sampler.in_process", "sampler.weight_transfer", "sampler.sleep_level",
)  # fmt: skip
"""Sections and fields that its advice does not depend on."""


def depends_on(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the advice depends on, by section.key, without secrets. Of a device only its type counts, which decides the
    precision.
    """
    found = {
        f"{section}.{name}": str(value).split(":")[0] if (section, name) == ("model", "device") else value
        for section, table in without_secrets(settings).items()
        if section not in FREE
        for name, value in table.items()
        if f"{section}.{name}" not in FREE and (section, name) not in {("algorithm", own) for own in OWN}
    }
    return plain(found)


def own_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of [algorithm] that a probe recommends, as the run has them."""
    return plain({f"algorithm.{name}": settings["algorithm"].get(name) for name in OWN})


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives them back: a date of a TOML file is text there."""
    return dict(json.loads(json.dumps(values, default=str)))


def recommended(folder: Path, settings: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """The settings of a run, in nested tables, with the algorithm that a probe recommends. given: fields that the user has
    given by hand, section.key, which stay. Raises ValueError where it recommends none, or was of another run.
    """
    told = _read(folder)
    if told.get("recommended") is None:
        why = " ".join(map(str, told.get("reasons", [])))
        raise ValueError(f"--from-probe {folder}: it recommends nothing. {why} Leave --from-probe out, or probe again")
    if "algorithm.name" in given:
        raise ValueError(f"--algorithm.name: --from-probe {folder} says what the algorithm is; leave one of the two out")
    _check(folder, told["depends"], depends_on(settings))
    own = settings["algorithm"]
    if not told["recommended"]:  # the run's own settings are kept
        here = own_of(settings)
        typed = {key: here[key] for key in here if key in given}
        _check(folder, told.get("own", {}) | typed, here)
        return dict(settings)
    kept = {key: value for key, value in own.items() if key not in OWN or f"algorithm.{key}" in given}
    made = {**told["recommended"], **kept}
    ends = ("epsilon", "epsilon_high")
    if any(f"algorithm.{end}" in given for end in ends):  # one range, not an end of each
        made = {key: value for key, value in made.items() if key not in ends or f"algorithm.{key}" in given}
    return {**settings, "algorithm": made}


def _check(folder: Path, probed: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    for key in sorted({*probed, *here}):
        if here.get(key) != probed.get(key):
            raise ValueError(
                f"--from-probe {folder}: {key} was {probed.get(key)!r} there and is {here.get(key)!r} here, and the advice "
                "depends on it: probe again with these settings, or set the algorithm yourself and leave --from-probe out"
            )


def _read(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"--from-probe {folder}: there is no {FILE}: name the folder of a `gspo probe` that ended"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"--from-probe {folder}: {path} cannot be read: {error}") from None
    tables = isinstance(told, dict) and all(isinstance(told.get(name, {}), dict) for name in ("depends", "own"))
    if not tables or "depends" not in told or not isinstance(told.get("recommended"), dict | None):
        raise ValueError(f"--from-probe {folder}: {path} is not what `gspo probe` writes")
    return told
