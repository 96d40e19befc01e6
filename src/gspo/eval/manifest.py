"""The manifest of an evaluation: data, prompt, sampling, limits, scoring. A resumed evaluation must have the same one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gspo import __version__
from gspo.config.engines import PRECISION, direct_arguments
from gspo.config.schema import Config
from gspo.data.benchmarks.table import Rows, asked, digest, named
from gspo.runs import disk
from gspo.safe import without_logins, without_secrets

NAME = "manifest.json"


def manifest(
    name: str,
    config: Config,
    rows: Rows,
    url: str,
    version: str,
    computation: dict[str, str],
    context: dict[str, Any],
) -> dict[str, Any]:
    """What identifies an evaluation, as plain data.

    version, computation: of the model's files, and what its numbers depend on besides; "" and {} for the endpoint at `url`.
    context: further facts about the scoring.
    """
    task, evaluation = config.task, config.eval
    made = {
        "benchmark": name,
        "title": named(name).title,
        "model": config.model.path,
        "endpoint": without_logins(url),
        "weights": version,
        "computation": computation,
        "data": {"sha256": digest(rows), "problems": len(rows), "options": without_secrets(asked(name, task.config))},
        "prompt": {
            "first": rows[0]["prompt"],
            "system": task.system,
            "template": task.template,
            "arguments": task.template_args,
        }
        | ({"date": task.date} if task.date else {}),
        "samples": evaluation.num_generations,
        "sampling": {
            "temperature": evaluation.temperature,
            "top_p": evaluation.top_p,
            "top_k": evaluation.top_k,
            "max_completion_length": evaluation.max_completion_length or config.rollout.max_completion_length,
            "stop": list(config.rollout.stop),
            "seed": config.train.seed,
            "engine": "endpoint" if url else config.sampler.engine,
        }
        | ({} if url else direct_arguments(config.sampler, PRECISION)),
        "scoring": {"reward": config.reward.functions, "timeout": config.reward.timeout} | context,
        "gspo": __version__,
    }
    return json.loads(json.dumps(made, default=str))


def begin(folder: Path, this: dict[str, Any]) -> bool:
    """Writes the manifest of a new evaluation, or checks that a resumed one is the same. Returns whether it is resumed.

    Raises ValueError, with the difference, if the folder holds something else.
    """
    path = folder / NAME
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--dir {folder}: cannot be made: {error}") from None
        if any(entry.name != f".{NAME}.part" for entry in folder.iterdir()):  # the part is left by a kill
            raise ValueError(f"--dir {folder}: the folder holds something else than an evaluation; give another one")
        disk.write_text(path, json.dumps(this, indent=1, ensure_ascii=False) + "\n")
        return False
    old = load(folder)
    for key, value in this.items():
        if key != "gspo" and old.get(key) != value:
            raise ValueError(
                f"--dir {folder}: holds another evaluation: {key} was {old.get(key)!r:.200} and is {value!r:.200} now. "
                "Give another --dir, or the same settings to go on"
            )
    return True


def begun_on(folder: Path) -> str | None:
    """The day that the chat template wrote when the evaluation in `folder` began; None if there is none, or no date."""
    return load(folder)["prompt"].get("date") if (folder / NAME).exists() else None


def load(folder: Path) -> dict[str, Any]:
    """Reads the manifest of an evaluation. Raises ValueError if there is none."""
    try:
        return dict(json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: is not the folder of an evaluation, for its {NAME} cannot be read: {error}") from None
