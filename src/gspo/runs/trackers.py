"""TensorBoard, Weights & Biases and Trackio, each behind `log(metrics, step)` and `close()`.

The libraries are optional and imported only if a run uses them. A resumed run continues the same tracker run, whose id is
stored in the run folder (`run_id`).
"""

from __future__ import annotations

import importlib
import json
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspo.runs.disk import write_text


def open_trackers(names: Sequence[str], folder: Path, project: str, config: dict[str, Any], step: int = 0) -> list[Any]:
    """Opens the trackers, any of "tensorboard", "wandb" and "trackio". `folder` names the tracker run. TensorBoard discards
    the steps after `step`, that of the checkpoint to resume from. Raises RuntimeError if one does not start.
    """
    return [
        TensorBoard(folder, config, step) if name == "tensorboard" else Hosted(name, folder, project, config)
        for name in names
    ]


class TensorBoard:
    """Scalars in `tensorboard/` of the run folder. See https://www.tensorflow.org/tensorboard."""

    name = "tensorboard"

    def __init__(self, folder: Path, config: dict[str, Any], step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and only needed here

        if not step:  # purge_step = 0 would leave what a run wrote that was killed before its first checkpoint
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)
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


class Hosted:
    """A run of Weights & Biases (files in `wandb/` of the run folder; `WANDB_MODE=offline` needs no login;
    https://docs.wandb.ai) or of Trackio (files on this machine, `trackio show`; https://huggingface.co/docs/trackio), which
    have the same interface.
    """

    def __init__(self, name: str, folder: Path, project: str, config: dict[str, Any]) -> None:
        library, run, id = importlib.import_module(name), folder.resolve().name, _run_id(folder)
        self.name = name
        options: dict[str, Any] = {"name": f"{run}-{id}", "embed": False}  # Trackio finds a run by its name
        if name == "wandb":  # its console would capture the live view
            options = {"name": run, "id": id, "dir": str(folder), "settings": library.Settings(console="off")}
        try:
            self._run = library.init(project=project, resume="allow", config=config, **options)
        except Exception as error:
            remedy = ". Run `wandb login`, or set WANDB_MODE=offline" if name == "wandb" else ""
            raise RuntimeError(f"log.trackers: {name} did not start: {str(error).rstrip('.')}{remedy}") from error

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Send the metrics of one step. wandb keeps the old values of a step that was sent before a crash."""
        self._run.log(metrics, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def _run_id(folder: Path) -> str:
    """The tracker run id of this run folder, created on first use."""
    path = folder / "run_id"
    if not path.exists():
        write_text(path, uuid.uuid4().hex[:8])
    return path.read_text(encoding="ascii")
