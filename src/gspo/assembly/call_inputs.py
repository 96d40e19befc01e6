"""The arguments of a Python call, and the configuration that they result in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gspo.config.files import as_config
from gspo.config.schema import Config
from gspo.config.source_kind import GIVEN
from gspo.config.values import type_of


@dataclasses.dataclass
class CallInputs:
    """Objects that a Python caller passes instead of naming them in the configuration."""

    model: Any = None
    tokenizer: Any = None
    rows: Any = None
    eval_rows: Any = None
    functions: Sequence[Callable[..., Any]] = ()

    @property
    def holds_model(self) -> bool:
        """Whether the model is a loaded one and not just a name."""
        return self.model is not None and not isinstance(self.model, (str, Path))


Source = Config | str | Path | dict[str, dict[str, Any]] | None


def configured(
    config: Any, sections: dict[str, Any], model: Any, tokenizer: Any, dataset: Any = None, resume: bool = False
) -> Config:
    """The configuration of a Python call. A loaded model is named after the folder that its weights are in; to resume, after
    what its run began with. Raises ValueError for arguments that contradict each other.
    """
    if not isinstance(config, (Config, str, Path, dict, type(None))):
        raise ValueError(f"config: expected a TOML file, a Config or nested dicts, got {type_of(config)}")
    if isinstance(model, Config) or str(model).endswith(".toml"):
        raise ValueError(f"model = {model!r:.80}: this is a configuration: pass it as config=")
    if isinstance(model, (dict, list, tuple, type)):
        expected = f"expected a folder, an id or a loaded model, got {type_of(model)}"
        raise ValueError(f'model: {expected}; a [model] section is config={{"model": {{...}}}}')
    named = model is None or isinstance(model, (str, Path))
    if tokenizer is not None and named:
        remedy = "beside a model's name give its folder or id as model.tokenizer, in config="
        raise ValueError(f"tokenizer: it goes with a loaded model; {remedy}")
    if tokenizer is None and not named:
        raise ValueError("tokenizer: a loaded model needs its tokenizer: pass tokenizer=")
    if model is not None:
        place = "gspo_folder" if hasattr(model, "gspo_folder") and not resume else "name_or_path"
        path = model if named else getattr(model, place, "") or GIVEN
        sections["model"] = {"path": str(path)}
    if dataset is not None:
        task = sections.get("task", {})
        sections["task"] = {"source": GIVEN} | task if isinstance(task, dict) else task
    return as_config(config, sections)
