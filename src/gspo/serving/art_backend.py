"""`gspo.ArtBackend`: trains the models of ART (openpipe-art), in place of ART's own backends."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

from gspo.agents.art_compat import adapters, in_arts_names
from gspo.agents.threads import begin
from gspo.assembly.call_inputs import Source
from gspo.config.files import as_config
from gspo.runs import checkpoint, disk
from gspo.serving.model import ServedModel
from gspo.serving.start import serve

KNOWN = {"openpipe-art": ((0, 5, 17), (0, 5, 19)), "openai": ((2, 14), (3,))}
"""Packages, with the first version that works and the first that does not: with openai 3, ART's own client fails."""
OURS = ("model.path", "log.dir", "serve.name")
"""Settings that ART's model gives."""
DEFAULTS = {"lora": {"rank": 8}, "train": {"keep_checkpoints": 10**9}}
"""As ART: adapters, and all checkpoints until `delete_checkpoints`."""
BATCH = 2  # conversations per update where ART's train_sft says "auto"
PINNED: ContextVar[dict[Path, int]] = ContextVar("PINNED")
"""Folders of models, and the step that their names mean in an evaluation of ART's PipelineTrainer."""


class ArtBackend(AbstractContextManager["ArtBackend"], AbstractAsyncContextManager["ArtBackend"]):
    """A backend for ART, whose scripts stay as they are but for the line that makes it:

        backend = gspo.ArtBackend()
        await model.register(backend)
        result = await backend.train(model, groups, learning_rate=1e-5)

    It trains with GSPO, and as ART adapters of rank 8, or as the model's `peft_args` say. Runs are in the folder `gspo` of
    ART's folder of the model, PATH/PROJECT/models/NAME. A script that is started again goes on from the last checkpoint.

    Args:
        path: ART's folder for all models; None: the `base_path` of each.
        config: Settings of gspo in place of the defaults: a TOML file, a Config or nested dicts.
        **sections: Overrides of `config`, such as `algorithm={"epsilon": "auto"}`, `sampler={"engine": "vllm"}`, or
            `lora={"rank": 0}` to train all weights.

    Raises:
        ValueError: ART is missing or of a version that is not known, or a setting is one that ART's model gives.
    """

    def __init__(self, *, path: str | Path | None = None, config: Source = None, **sections: dict[str, Any]) -> None:
        check_versions()
        for key in OURS:
            section, name = key.split(".")
            if name in sections.get(section, {}):
                value = sections[section][name]
                raise ValueError(f"{key} = {value!r}: ART's model gives it (base_model, base_path, name): leave it out")
        self._path, self._config, self._sections = path, config, sections
        self._models: dict[Path, ServedModel] = {}
        self._runs = ExitStack()
        atexit.register(self._runs.close)  # most of ART's scripts close nothing

    async def __aexit__(self, *exception: Any) -> None:
        await self.close()

    def __exit__(self, *exception: Any) -> None:
        self._models.clear()
        self._runs.close()

    async def close(self) -> None:
        """Ends all runs: steps under way are finished, and checkpoints and models are written."""
        self.__exit__()

    async def register(self, model: Any) -> None:
        """Makes the model's folder."""
        if self._path is not None:
            model.base_path = str(self._path)
        folder = _folder(model)
        folder.mkdir(parents=True, exist_ok=True)
        disk.write_text(folder / "model.json", json.dumps(model.model_dump(), default=str, indent=2))

    async def _prepare_backend_for_training(self, model: Any, config: Any = None) -> tuple[str, str]:
        if config:
            raise ValueError(
                f"_openai_client_config = {config!r:.80}: give its settings to gspo.ArtBackend, as in "
                'serve={"port": 8000} or sampler={"engine": "vllm", "engine_args": {...}}'
            )
        if _folder(model) not in self._models:
            self._models[_folder(model)] = self._begun(model)
        served = self._of(model)
        return served.base_url, served.api_key

    def _begun(self, model: Any) -> ServedModel:
        folder = _folder(model) / "gspo"
        for path in (_folder(model) / "checkpoints").glob("*"):
            if not path.is_symlink():
                raise ValueError(f"{path} is of another backend: give the model another name; this may be its base_model")
        given = {"model": {"path": model.base_model}, "log": {"dir": str(folder)}, "serve": {"name": model.name}}
        config = as_config(DEFAULTS if self._config is None else self._config, given | {"lora": adapters(model)})
        resume = (folder / checkpoint.CONFIG).exists()
        serving = serve(config=as_config(config, self._sections), resume=resume)
        served = serving.__enter__()
        self._runs.callback(serving.__exit__, None, None, None)  # the error of another run is not this one's
        return served

    def _of(self, model: Any) -> ServedModel:
        if _folder(model) not in self._models:
            raise ValueError(f"model {model.name!r} is not registered here: await model.register(backend)")
        return self._models[_folder(model)]

    def _model_inference_name(self, model: Any, step: int | None = None) -> str:
        if not model.trainable:
            return str(model.inference_model_name or model.name)
        step = PINNED.get({}).get(_folder(model)) if step is None else step
        return str(model.name) if step is None else f"{model.name}@{step}"

    async def _get_step(self, model: Any) -> int:
        return self._of(model).step if model.trainable else 0

    async def train(
        self, model: Any, trajectory_groups: Iterable[Any], *, save_checkpoint: bool = True, **settings: Any
    ) -> Any:
        """Trains one step. Returns ART's LocalTrainResult, whose metrics have ART's names, and gspo's as gspo/NAME.

        Args:
            model: A registered model.
            trajectory_groups: ART's groups.
            save_checkpoint: Whether to save a checkpoint. Each `train.save_every` steps there is one anyway.
            settings: `learning_rate`, `importance_sampling_level`, and ART's other settings at values without effect.

        Raises:
            TypeError: A setting is unknown.
            ValueError: It cannot be set here, with what gspo has in its place; or nothing can be trained on.
            RuntimeError: The run collapses (guard.action), has collapsed, or has ended.
        """
        from art.types import LocalTrainResult

        served = self._of(model)
        metrics = in_arts_names(await served.train(list(trajectory_groups), **settings))
        return LocalTrainResult(served.step, metrics, await self._saved(model, save_checkpoint))

    async def _saved(self, model: Any, needed: bool) -> str | None:
        """The model of the newest step's checkpoint, as ART's checkpoints/NNNN; None if there is none and none is needed."""
        served = self._of(model)
        folder = checkpoint.folder_of(served.run.log.folder.checkpoints, served.step)
        if needed and not folder.exists():
            await asyncio.wrap_future(begin(served.save))
        if not folder.exists():
            return None
        link = _link(model, served.step)
        link.parent.mkdir(exist_ok=True)
        disk.delete(link)
        link.symlink_to(os.path.relpath(folder / checkpoint.MODEL, link.parent))
        return str(link)

    async def _train_model(
        self, model: Any, trajectory_groups: Iterable[Any], config: Any, dev_config: Any, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        """ART's older `await model.train(groups, config, _config)`."""
        result = await self.train(model, trajectory_groups, config=config, _config=dev_config, verbose=verbose)
        yield result.metrics

    async def _train_sft(
        self, model: Any, trajectories: Iterable[Any], config: Any, dev_config: Any = None, verbose: bool = False
    ) -> AsyncIterator[dict[str, float]]:
        """Supervised fine-tuning, as one step."""
        if dev_config:
            raise ValueError(f"train_sft: _config = {dev_config!r:.80}: gspo has nothing like it: leave it out")
        size = BATCH if config.batch_size == "auto" else config.batch_size
        updates = await self._of(model).imitate(trajectories, config.learning_rate, size)
        await self._saved(model, True)
        for metrics in updates:
            yield in_arts_names(metrics)

    async def _delete_checkpoint_files(self, model: Any, steps_to_keep: list[int]) -> None:
        checkpoints = self._of(model).run.log.folder.checkpoints
        marked = [checkpoint.marked(checkpoints, kind) for kind in (checkpoint.GOOD, checkpoint.BEST)]
        for folder in checkpoint.steps(checkpoints)[:-1]:
            if (step := int(folder.name.removeprefix("step_"))) not in steps_to_keep and folder not in marked:
                disk.delete(_link(model, step))
                disk.remove(folder)

    @asynccontextmanager
    async def adapter_lease(self, model: Any, step: int) -> AsyncIterator[None]:
        """Keeps a step's weights in memory if they are loaded. In an evaluation the model's name means this step."""
        from art.metrics import MetricsBuilder

        pinned = PINNED.get({})
        with suppress(LookupError):
            if MetricsBuilder.get_active().cost_context.startswith("eval"):
                pinned = pinned | {_folder(model): step}
        token = PINNED.set(pinned)
        try:
            with self._of(model).earlier.held(step):
                yield
        finally:
            PINNED.reset(token)

    async def prune_model_adapters(self, model: Any, *, retain_steps: Iterable[int]) -> None:
        """Frees the memory of steps that are loaded, except these."""
        await asyncio.to_thread(self._of(model).earlier.drop, {*retain_steps})

    def supports_automatic_train_step_metrics(self) -> bool:
        """ART measures the time between two steps itself."""
        return True


def check_versions() -> None:
    """Raises ValueError if ART, or the client that it makes, is missing or of another version than works here."""
    for package, limits in KNOWN.items():
        first, other = (".".join(map(str, limit)) for limit in limits)
        remedy = f"pip install '{package}>={first},<{other}'"
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            raise ValueError(f"gspo.ArtBackend needs {package}: {remedy}") from None
        if not limits[0] <= tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < limits[1]:
            raise ValueError(f"gspo.ArtBackend does not work with {package} {version}: {remedy}")


def _folder(model: Any) -> Path:
    return Path(model._get_output_dir())


def _link(model: Any, step: int) -> Path:
    return _folder(model) / "checkpoints" / f"{step:04d}"
