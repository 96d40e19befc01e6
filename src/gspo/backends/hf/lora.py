"""LoRA (PEFT): a policy with frozen weights and small trained adapters on linear layers and on stacked experts."""

from __future__ import annotations

import dataclasses
import logging
import re
import warnings
from pathlib import Path
from types import MethodType
from typing import Any, Self

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from gspo.backends.hf import experts
from gspo.backends.hf.files import is_adapter, of_base
from gspo.backends.hf.layers import linear_layers, stacked
from gspo.backends.hf.load import load_model, ready, wrap_model
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.quantized_weights import Packed, pack, quiet
from gspo.backends.hf.routers import routers
from gspo.config.import_function import pick_device
from gspo.config.policy import LoraConfig, ModelConfig

logger = logging.getLogger(__name__)

NAME = "default"  # PEFT's adapter name
WEIGHTS = "adapter_model.safetensors"
ALL_LINEAR, EXPERTS = "all-linear", "experts"  # keywords of lora.targets
BELOW = re.compile(r"(\.base_layer)+(?=\.)")  # in weight names: one level per adapter that wraps the module


def peft() -> Any:
    """The module peft."""
    with quiet():  # PEFT imports bitsandbytes if it is installed
        import peft
    return peft


def adapted(model: HFModel, lora: LoraConfig, seed: int = 0) -> Adapted:
    """Adds new adapters to the model, in place. They change nothing yet (B = 0); `seed` initialises A. Raises ValueError if
    the model has adapters already, or lora.targets do not fit its layers.
    """
    if getattr(model.model, "peft_config", None):
        raise ValueError(f"lora.rank = {lora.rank}: this model has adapters already: give a newly loaded one")
    alpha = 2 * lora.rank if lora.alpha is None else lora.alpha
    names = set(lora.targets) - {ALL_LINEAR, EXPERTS}
    if taken := {name for name in names if _taken_for_experts(model.model, name)}:
        raise ValueError(
            f"lora.targets = {lora.targets}: PEFT takes {', '.join(sorted(taken))} of a {model.config.model_type} for the "
            f'stacks of its experts: name "{EXPERTS}" to adapt these'
        )
    if ALL_LINEAR in lora.targets:  # PEFT's own "all-linear" leaves out the head only if PEFT wraps the model itself
        names |= {name for name in linear_layers(model.model) if not _taken_for_experts(model.model, name)}
    config = peft().LoraConfig(
        r=lora.rank, lora_alpha=alpha, target_modules=sorted(names), lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
        target_parameters=stacks(model.model) if EXPERTS in lora.targets else None,
    )  # fmt: skip
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model.model.add_adapter(config, NAME)
    except ValueError as error:
        layers = ", ".join(sorted({name.rsplit(".")[-1] for name in linear_layers(model.model)}))
        raise ValueError(f"lora.targets = {lora.targets}: {str(error).rstrip('.')}. This model has {layers}") from None
    if hasattr(model.model.get_output_embeddings(), "base_layer"):
        raise ValueError(f"lora.targets = {lora.targets}: the head takes no adapter here: leave it out")
    _name_base(model.model)
    beside_experts(model.model)
    for name, parameter in model.model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.to(model.device, torch.float32)  # small updates vanish in bfloat16
    return Adapted.of(model)


def _name_base(model: PreTrainedModel) -> None:
    """Records the base model (as an absolute path, if it is a folder) and its revision in the adapter's configuration."""
    config: Any = model.peft_config[NAME]
    base = getattr(model, "gspo_folder", model.name_or_path)
    config.base_model_name_or_path = str(Path(base).absolute()) if base and Path(base).is_dir() else base
    config.revision = getattr(model.config, "_commit_hash", None)
    if not base:
        logger.warning(
            "the model was given from Python, and its weights are in no folder, so its adapter cannot name what it is for, "
            "and nothing else loads it: write the model into a folder first, and give that folder"
        )


def _taken_for_experts(model: PreTrainedModel, name: str) -> bool:
    """Whether PEFT mistakes this layer for an unstacked expert and moves its adapter to the stacks, now and on every load:
    in the DeepSeek family and others, each gate_proj, up_proj and down_proj.
    """
    config = peft().LoraConfig(target_modules=[name])
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers as convert

    try:
        convert(config, model, None)
    except ValueError:  # PEFT requires gate_proj and up_proj together
        return True
    return set(config.target_modules) != {name}


def stacks(model: PreTrainedModel) -> list[str]:
    """The names, without the layer, of weights that hold all experts of a layer. Raises ValueError if there are none."""
    found = {re.sub(r".*?\.\d+\.", "", f"{name}.{weight}", count=1) for name, _, weight in stacked(model)}
    if not found or not routers(model):
        what = "its experts are linear layers" if routers(model) else "this model has no experts"
        raise ValueError(f'lora.targets = [..., "{EXPERTS}"]: {what}: leave it out, "{ALL_LINEAR}" takes every linear layer')
    return sorted(found)


def beside_experts(model: PreTrainedModel) -> None:
    """Multiplies adapters on stacks directly with the tokens, if the experts support it. PEFT's own forward pass would
    materialise W + B A for the whole stack, in its dtype, in every pass.
    """
    wrappers = [module for module in model.modules() if isinstance(module, peft().tuners.lora.layer.ParamWrapper)]
    if wrappers and getattr(model.config, "_experts_implementation", None) == "grouped_mm" and hasattr(F, "grouped_mm"):
        model.set_experts_implementation(experts.NAME)  # the same products
    for wrapper in wrappers:
        wrapper.forward = MethodType(_through_experts, wrapper)


def _through_experts(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Forward pass for PEFT's wrapper of one stack. The experts may be wrapped again for another stack."""
    below = self.get_base_layer()
    if self.disable_adapters or self.merged or not experts.takes_adapters(below):
        return type(self).forward(self, x, *args, **kwargs)
    a, b, count = self.lora_A[NAME].weight, self.lora_B[NAME].weight, self.num_experts
    down = a.view(count, -1, a.shape[1])  # [E, r, in]
    up = b.view(b.shape[0], -1, count).permute(2, 0, 1)  # [E, out, r]
    with experts.beside(self.parameter_name, experts.Adapter(down, up, self.scaling[NAME])):
        return self.base_layer(x, *args, **kwargs)


def packed(model: Adapted, cfg: ModelConfig) -> Adapted:
    """Moves the model to the device of `cfg` and quantizes the weights below its adapters (model.quantize). Raises
    ValueError for layers that do not work quantized.
    """
    if model.model._can_set_experts_implementation() and hasattr(F, "grouped_mm"):
        model.model.set_experts_implementation(experts.NAME)
    device = pick_device(cfg.device)
    pack(model.model, cfg.quantize, device, experts.takes_adapters)
    nn.Module.to(model.model, device=device)
    try:
        return ready(Adapted, model.model, model.tokenizer, cfg)
    except (TypeError, AttributeError) as error:  # the model's own code reads a packed weight
        raise ValueError(
            f"model.quantize = {cfg.quantize!r}: layers of a {model.model.config.model_type} do not work packed "
            f"({error}): leave it out"
        ) from error


class Adapted(HFModel):
    """A model with adapters. `save` writes only the adapter, in PEFT's format, and the tokenizer."""

    adapted = True

    @classmethod
    def of(cls, model: HFModel) -> Self:
        """Wraps the same weights without copying them."""
        return cls(**{field.name: getattr(model, field.name) for field in dataclasses.fields(HFModel) if field.init})

    def load(self, folder: str | Path) -> None:
        """Loads an adapter that `save` wrote."""
        prefix = "base_model.model."
        saved = {name.removeprefix(prefix): value for name, value in load_file(Path(folder) / WEIGHTS).items()}
        own = {name for name, _ in self.model.named_parameters() if "lora_" in name}
        if missing := own ^ {re.sub(r"(\.\w+)$", rf".{NAME}\1", name) for name in saved}:
            raise ValueError(f"{folder}: its adapter is of other layers or targets: {', '.join(sorted(missing)[:3])}, ...")
        peft().set_peft_model_state_dict(self.model, saved, adapter_name=NAME)

    def save(self, folder: str | Path, merged: bool = False) -> None:
        """Writes the adapter and the tokenizer, or the full model with the adapter `merged` into it."""
        if merged:
            return self.save_whole(folder)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Could not find a config file")  # from a base model that is itself an adapter
            self.model.save_pretrained(folder)
        self.save_rest(folder)

    def save_whole(self, folder: str | Path, merged: bool = True) -> None:
        """Writes a full model: the base weights, or (merged) W + B A alpha / r. The model in memory is not changed."""
        self.model._hf_peft_config_loaded = False  # else transformers saves only the adapter
        try:
            self.model.save_pretrained(folder, state_dict=self._plain_state(merged))
        finally:
            self.model._hf_peft_config_loaded = True
        self.save_rest(folder)

    @torch.no_grad()
    def _plain_state(self, merged: bool) -> dict[str, Tensor]:
        state = {BELOW.sub("", name): value for name, value in self.model.state_dict().items() if ".lora_" not in name}
        for name, module in self.model.named_modules():
            if isinstance(module, Packed):
                state[BELOW.sub("", name)] = module.whole().cpu()  # all of them may not fit on the GPU
        for name, module in self.model.named_modules() if merged else ():
            if hasattr(module, "get_delta_weight"):
                key = BELOW.sub("", f"{name}.") + getattr(module, "parameter_name", "weight")
                state[key] = state[key] + module.get_delta_weight(NAME).to(state[key])
        return state


class Unadapted(Adapted):
    """The same model with its adapters switched off, i.e. the model that training started from."""

    def hidden(self, **inputs: Any) -> Tensor:
        """Last hidden states [B, L, H] without the adapters."""
        self.model.disable_adapters()
        try:
            return super().hidden(**inputs)
        finally:
            self.model.enable_adapters()


def read_model(cfg: ModelConfig) -> HFModel:
    """Loads the model that `cfg` names. For an adapter's folder, loads the base model and merges the adapter into it."""
    if not is_adapter(cfg.path):
        return load_model(cfg)
    below = of_base(cfg, read_model)
    whole = peft().PeftModel.from_pretrained(below.model, cfg.path).merge_and_unload()
    whole.requires_grad_(True)  # PEFT has frozen the base
    if hasattr(whole, "peft_config"):
        del whole.peft_config
    model = wrap_model(whole, below.tokenizer, cfg)  # with the base's processor
    whole.name_or_path = cfg.path  # base model of any adapter trained on top of it
    return model
