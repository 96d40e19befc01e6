"""LoRA: a policy whose weights stay as they are, with small adapters on its linear layers that are trained (PEFT)."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo.backends.hf.files import base_of, is_adapter, of_the_base
from gspo.backends.hf.load import load_model, wrap_model
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.routers import routers
from gspo.config.policy import LoraConfig, ModelConfig

NAME = "default"  # PEFT's name of an adapter
WEIGHTS = "adapter_model.safetensors"


def peft() -> Any:
    """The module peft. Raises ValueError where it is not installed."""
    try:
        import peft
    except ImportError:
        raise ValueError('lora.rank above 0 and adapters need peft: pip install "gspo[lora]"') from None
    return peft


def adapted(model: HFModel, lora: LoraConfig, seed: int = 0) -> Adapted:
    """The model with new adapters, which change nothing yet (B = 0). `model` itself is changed in place.

    seed: of A. Raises ValueError where no layer has such a name.
    """
    if getattr(model.model, "peft_config", None):
        raise ValueError(f"lora.rank = {lora.rank}: this model has adapters already: give a newly loaded one")
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    targets: Any = "all-linear" if lora.targets == ["all-linear"] else lora.targets
    config = peft().LoraConfig(
        r=lora.rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
    )  # fmt: skip
    if targets == "all-linear":  # PEFT's own leaves out the head only where it wraps the model itself
        config.target_modules = sorted(linear_layers(model.model))
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model.model.add_adapter(config, NAME)
    except ValueError as error:
        layers = ", ".join(sorted({name.rsplit(".")[-1] for name in linear_layers(model.model)}))
        raise ValueError(f"lora.targets = {lora.targets}: {error}. This model has {layers}") from None
    if hasattr(model.model.get_output_embeddings(), "base_layer"):
        raise ValueError(f"lora.targets = {lora.targets}: the head takes no adapter here: leave it out")
    _name_base(model.model)
    for name, parameter in model.model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.to(model.device, torch.float32)  # small updates vanish in bfloat16
    return Adapted(**_fields(model))


def _name_base(model: PreTrainedModel) -> None:
    """Has the adapter say what it stands on, to be found from any folder, and in the revision that it was made for."""
    config: Any = model.peft_config[NAME]
    base = model.name_or_path
    config.base_model_name_or_path = str(Path(base).absolute()) if base and Path(base).is_dir() else base
    config.revision = getattr(model.config, "_commit_hash", None)
    if not base:
        warnings.warn(
            "the model was given from Python and has no name, so its adapter cannot say what it belongs to, and nothing "
            "else loads it: write the model into a folder first, and give that folder",
            stacklevel=2,
        )


def _fields(model: HFModel) -> dict[str, Any]:
    """What a model is made of, for another kind of the same."""
    return {field.name: getattr(model, field.name) for field in dataclasses.fields(HFModel) if field.init}


def linear_layers(model: PreTrainedModel) -> list[str]:
    """The names of the linear layers but the head and those of routers. Experts of a mixture are kept in stacks, which are
    none.
    """
    left_out = {model.get_output_embeddings()} | {part for router in routers(model) for part in router.modules()}
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module not in left_out]


class Adapted(HFModel):
    """A model with adapters. `save` writes the adapter alone, in PEFT's format, with the tokenizer."""

    adapted = True

    def load(self, folder: str | Path) -> None:
        """Take over the adapter that `save` wrote."""
        prefix = "base_model.model."
        saved = {name.removeprefix(prefix): value for name, value in load_file(Path(folder) / WEIGHTS).items()}
        own = {name for name, _ in self.model.named_parameters() if "lora_" in name}
        if missing := own ^ {_named(name) for name in saved}:
            raise ValueError(f"{folder}: its adapter is of other layers or targets: {', '.join(sorted(missing)[:3])}, ...")
        peft().set_peft_model_state_dict(self.model, saved, adapter_name=NAME)

    def save(self, folder: str | Path) -> None:
        """Write the adapter and the tokenizer. Beside the base model's configuration transformers would not look for its
        weights elsewhere.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Could not find a config file")  # of a base model that is an adapter too
            self.model.save_pretrained(folder)
        (Path(folder) / "config.json").unlink(missing_ok=True)
        self.tokenizer.save_pretrained(folder)

    def save_whole(self, folder: str | Path, merged: bool = True) -> None:
        """Write a whole model: the weights below the adapters, or (merged) W + B A alpha / r; nothing is changed here."""
        with self._as_plain():
            self.model.save_pretrained(folder, state_dict=self._plain_state(merged))
        self.tokenizer.save_pretrained(folder)

    @contextmanager
    def _as_plain(self) -> Iterator[None]:
        """transformers saves nothing but the adapter where it knows of one."""
        self.model._hf_peft_config_loaded = False
        try:
            yield
        finally:
            self.model._hf_peft_config_loaded = True

    @torch.no_grad()
    def _plain_state(self, merged: bool) -> dict[str, Tensor]:
        state = {
            name.replace(".base_layer.", "."): value
            for name, value in self.model.state_dict().items()
            if ".lora_" not in name
        }
        for name, module in self.model.named_modules() if merged else ():
            if hasattr(module, "get_delta_weight"):
                weight = state[f"{name}.weight"]
                state[f"{name}.weight"] = weight + module.get_delta_weight(NAME).to(weight.dtype)
        return state


def _named(saved: str) -> str:
    """The parameter's name of a tensor in an adapter file."""
    path, dot, last = saved.rpartition(".")
    return f"{path}.{NAME}{dot}{last}"


class Unadapted(Adapted):
    """The same model with its adapters switched off: what training began with."""

    def hidden(self, **inputs: Any) -> Tensor:
        """Last hidden states without the adapters."""
        self.model.disable_adapters()
        try:
            return super().hidden(**inputs)
        finally:
            self.model.enable_adapters()

    @staticmethod
    def of(model: Adapted) -> Unadapted:
        """The same weights, in no second copy."""
        return Unadapted(**_fields(model))


def read_model(cfg: ModelConfig) -> HFModel:
    """The model that `cfg` names; where that is an adapter's folder, its base model with the adapter merged into it."""
    if not is_adapter(cfg.path):
        return load_model(cfg)
    base = base_of(cfg)
    with of_the_base(cfg):
        below = read_model(base)
    whole = peft().PeftModel.from_pretrained(below.model, cfg.path).merge_and_unload()
    whole.name_or_path = cfg.path  # an adapter that is trained on it stands on this one
    if hasattr(whole, "peft_config"):
        del whole.peft_config
    return wrap_model(whole, below.tokenizer, cfg)
