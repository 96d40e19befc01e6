"""What a run takes from a probe: `gspo train CONFIG.toml --from-probe DIR`. Imports nothing heavy."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

FILE = "probe.json"
DEPENDS = (
    "model.path", "model.dtype", "model.autocast", "lora.rank", "task.source", "rollout.num_prompts",
    "rollout.num_generations", "rollout.max_completion_length", "rollout.temperature", "rollout.delay",
    "rollout.max_staleness", "sampler.engine", "sampler.quantize", "optimizer.lr", "algorithm.mini_batches",
    "algorithm.epochs", "algorithm.credit",
)  # fmt: skip
"""Settings that the advice depends on."""
OWN = ("name", "epsilon", "epsilon_high", "constants", "old_logprobs", "router_replay")
"""Fields of [algorithm] that a probe recommends."""


def recommended(folder: Path, settings: Mapping[str, Mapping[str, Any]], given: Collection[str]) -> dict[str, Any]:
    """The settings of a run, in nested tables, with the algorithm that a probe recommends. given: fields that the user has
    given by hand, section.key, which stay. Raises ValueError where it recommends none, or was of another run.
    """
    told = _read(folder)
    if told.get("recommended") is None:
        why = " ".join(map(str, told.get("reasons", [])))
        raise ValueError(
            f"--from-probe {folder}: it recommends nothing. {why} Leave --from-probe out, or probe with more groups"
        )
    _check(folder, told["depends"], settings)
    kept = {key: value for key, value in settings["algorithm"].items() if key not in OWN or f"algorithm.{key}" in given}
    return {**settings, "algorithm": {**told["recommended"], **kept}}


def _check(folder: Path, probed: Mapping[str, Any], settings: Mapping[str, Mapping[str, Any]]) -> None:
    for key in DEPENDS:
        section, name = key.split(".")
        here, there = settings.get(section, {}).get(name), probed.get(key)
        if here != there:
            raise ValueError(
                f"--from-probe {folder}: {key} was {there!r} there and is {here!r} here, which the advice depends on: probe "
                "again with these settings, or set the algorithm yourself and leave --from-probe out"
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
    if not isinstance(told, dict) or not isinstance(told.get("depends"), dict):
        raise ValueError(f"--from-probe {folder}: {path} is not what `gspo probe` writes")
    return told
