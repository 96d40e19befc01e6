"""TensorBoard, Weights & Biases and Trackio, each behind `log(metrics, step)` and `close()`.

The libraries are optional and imported only if a run uses them. A resumed run continues the same tracker run, whose id is
stored in the run folder (`run_id`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def open_trackers(
    names: Sequence[str], folder: str | Path, project: str, config: dict[str, Any], step: int = 0
) -> list[Any]:
    """Opens the trackers, ready to log.

    Args:
        names: Any of "tensorboard", "wandb" and "trackio".
        folder: The run folder, which names the tracker run.
        project: The project of wandb and trackio.
        config: The resolved configuration as nested tables.
        step: The step of the checkpoint to resume from. TensorBoard discards later steps.

    Raises:
        RuntimeError: If a library is missing or does not start.
        ValueError: For any other name.
    """
    opened: list[Any] = []
    kinds = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
    try:
        for name in names:
            if name not in kinds:
                raise ValueError(f"log.trackers: {name!r} is none of {', '.join(kinds)}")
            opened.append(kinds[name](Path(folder), project, config, step))
    except BaseException:
        for tracker in opened:
            tracker.close()
        raise
    return opened


def check_trackers(names: Sequence[str]) -> None:
    """Raises RuntimeError if a tracker's library is missing."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise RuntimeError(f"log.trackers: {name!r} needs a library that is not installed: pip install 'gspo[trackers]'")


class TensorBoard:
    """Scalars in `tensorboard/` of the run folder. See https://www.tensorflow.org/tensorboard."""

    name = "tensorboard"

    def __init__(self, folder: Path, project: str, config: dict[str, Any], step: int) -> None:
        _load("tensorboard", self.name)
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only needed here

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None, flush_secs=10)
        if not step:
            self._writer.add_text("config", "```\n" + json.dumps(config, indent=2, default=str) + "\n```", 0)

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Write the metrics of one step."""
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        self._writer.close()


class WandB:
    """A run of Weights & Biases, with its files in `wandb/` of the run folder.

    `WANDB_MODE=offline` needs no login. See https://docs.wandb.ai.
    """

    name = "wandb"

    def __init__(self, folder: Path, project: str, config: dict[str, Any], step: int) -> None:
        wandb = _load("wandb", self.name)
        try:
            self._run = wandb.init(
                project=project,
                name=folder.resolve().name,
                id=_run_id(folder),
                resume="allow",
                dir=str(folder),
                config=config,
                settings=wandb.Settings(console="off"),  # do not capture the live view
            )
        except Exception as error:
            reason = str(error).rstrip(".")
            raise RuntimeError(
                f"log.trackers: wandb did not start: {reason}. Run `wandb login`, or set WANDB_MODE=offline"
            ) from error

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send the metrics of one step. A step that was sent before a crash keeps its old values."""
        self._run.log(metrics, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Trackio:
    """A run of Trackio, on this machine (`trackio show`) unless its environment variables say otherwise.

    See https://huggingface.co/docs/trackio.
    """

    name = "trackio"

    def __init__(self, folder: Path, project: str, config: dict[str, Any], step: int) -> None:
        trackio = _load("trackio", self.name)
        try:
            self._run = trackio.init(
                project=project,
                name=f"{folder.resolve().name}-{_run_id(folder)}",  # Trackio finds a run by its name
                resume="allow",
                config=config,
                embed=False,
            )
        except Exception as error:
            raise RuntimeError(f"log.trackers: trackio did not start: {error}") from error

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send the metrics of one step."""
        self._run.log(metrics, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def _load(module: str, tracker: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(
            f"log.trackers: {tracker!r} needs a library that is not installed ({error}): pip install 'gspo[trackers]'"
        ) from error


def _run_id(folder: Path) -> str:
    """The tracker run id of this run folder, created on first use."""
    path = folder / "run_id"
    if not path.exists() or not path.read_text(encoding="ascii").strip():
        path.write_text(uuid.uuid4().hex[:8], encoding="ascii")
    return path.read_text(encoding="ascii").strip()
