"""The models and prompts of a run, from its configuration."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.teacher import load_teacher
from gspo.backends.hf import routers, routing
from gspo.backends.hf.files import (
    Outline,
    check_expert_parallel,
    check_path,
    expert_counts,
    is_adapter,
    outline,
    read_outline,
)
from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.lora import Unadapted, adapted, packed, read_model
from gspo.backends.hf.model import HFModel, example_token_ids
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.stopping import stops_by_kind
from gspo.config.answer_format import default_system
from gspo.config.conflicts import LEARN, check_conflicts
from gspo.config.engines import underscored
from gspo.config.import_function import pick_device
from gspo.config.policy import ModelConfig
from gspo.config.rollout import TaskConfig
from gspo.config.schema import Config
from gspo.config.source_kind import GIVEN
from gspo.config.stages import longest
from gspo.config.training import EvalConfig
from gspo.data.chat_template import Encoder
from gspo.data.decontamination import Overlap
from gspo.data.loaders import Table, table
from gspo.data.prompts import load_prompts
from gspo.data.splits import read_tables
from gspo.distributed.ranks import ProcessRanks
from gspo.runs import checkpoint
from gspo.types import Prompt, Sampling

logger = logging.getLogger(__name__)


def named(config: Config, last: Path | None) -> ModelConfig:
    """The model to load: the configured one, or the one in the checkpoint `last`."""
    if last is None:
        return config.model
    return dataclasses.replace(config.model, path=str(last / checkpoint.MODEL), tokenizer=None, revision=None)


def check_offload(config: Config) -> None:
    """Raises ValueError for offloading where the model is on a CPU. Elsewhere it is known only here what "auto" means."""
    if pick_device(config.model.device).type == "cpu":
        check_conflicts(dataclasses.replace(config, model=dataclasses.replace(config.model, device="cpu")), LEARN)


def check_here(config: Config, given: CallInputs, last: Path | None) -> None:
    """Raises ValueError for an invalid model path, without reading or downloading anything."""
    if not given.holds_model:
        check_path(named(config, last))


def outline_of(config: Config, given: CallInputs, last: Path | None) -> Outline:
    """Tokenizer and config of the model, without weights: all that the prompts need."""
    if given.holds_model:
        return outline(given.model, given.tokenizer)
    whole = last is not None and not config.lora.rank  # a checkpoint of adapters holds nothing else
    return read_outline(named(config, last if whole else None))


def trained_outline(config: Config, given: CallInputs, last: Path | None) -> Outline:
    """`outline_of` a model to train. Raises ValueError for experts that scale.expert_parallel does not divide."""
    found = outline_of(config, given, last)
    check_expert_parallel(config.model, config.scale.expert_parallel, expert_counts(found.config)[1])
    return found


def models_of(
    config: Config, given: CallInputs, last: Path | None, ranks: ProcessRanks | None = None
) -> tuple[HFModel, dict[str, HFPolicy]]:
    """The model to train, with the weights of the checkpoint `last`, and the frozen policies, as in PolicyLearner: the
    reference of the KL term, which is the model that training began with, and the teacher. All are sharded among `ranks`.
    """
    if ranks is not None:
        return sharded_models(config, last, ranks)
    model, reference = whole_models(config, given, last)
    return model, frozen_policies(config, reference, load_teacher(config, read_model))


def frozen_policies(config: Config, reference: HFModel | None, teacher: HFModel | None) -> dict[str, HFPolicy]:
    """A policy for each of these models that there is, by the column that it fills."""
    made = {}
    for column, model in (("logp_ref", reference), ("logp_teacher", teacher)):
        if model is not None:
            own = not isinstance(model, Unadapted)  # else its weights are those of the model in training
            if own:
                model.model.requires_grad_(False)
            rests = own and config.train.offload_reference
            made[column] = HFPolicy(model, config.rollout.temperature, config.train.layout, rests=rests)
    return made


def whole_models(config: Config, given: CallInputs, last: Path | None) -> tuple[HFModel, HFModel | None]:
    """The model to train and the reference, in a single process."""
    begin: HFModel | None = None
    if given.holds_model or last is None or config.algorithm.beta > 0 or config.lora.rank:
        packs = config.lora.rank and config.model.quantize != "none"  # packing then moves it to its device
        begin = loaded_model(config, given, "cpu" if packs else None)
    if config.lora.rank and begin is not None:
        return adapted_models(config, begin, last)
    reference = None
    if config.algorithm.beta > 0 and begin is not None:
        if given.holds_model and last is not None and hasattr(given.model, "gspo_folder"):
            raise ValueError(
                f"algorithm.beta = {config.algorithm.beta:g}: the reference is the model that training began with, and this "
                "object has been trained since: give a newly loaded one, or its folder"
            )
        apart = last is not None and not given.holds_model  # the model to train is read from the checkpoint
        reference = begin if apart else dataclasses.replace(begin, model=copy.deepcopy(begin.model))
    if last is not None:
        if not given.holds_model or begin is None:
            return read_model(named(config, last)), reference
        leave_folder(config, begin)
        begin.load(last / checkpoint.MODEL)
    assert begin is not None
    return begin, reference


def sharded_models(config: Config, last: Path | None, ranks: ProcessRanks) -> tuple[HFModel, dict[str, HFPolicy]]:
    """`models_of`, sharded among the ranks."""
    try:
        from gspo.backends.hf.sharded import load_sharded
    except ImportError as error:
        raise ValueError(f"scale.ranks = {ranks.size}: needs transformers 5.23 or newer: update it ({error})") from error

    if is_adapter(config.model.path):
        raise ValueError(
            f"model.path = {config.model.path!r}: is an adapter, which several ranks cannot merge into its model: give the "
            "folder of the merged model, which `gspo export` writes"
        )
    model = load_sharded(named(config, last), config.scale, ranks.size)
    reference = load_sharded(config.model, config.scale, ranks.size) if config.algorithm.beta else None
    teacher = load_teacher(config, lambda cfg: load_sharded(cfg, config.scale, ranks.size))
    frozen = frozen_policies(config, reference, teacher)
    ranks.loaded()
    return model, frozen


def loaded_model(config: Config, given: CallInputs, device: str | None = None) -> HFModel:
    """The whole (unsharded) model: the given one, or the one that `config` names. `device` overrides model.device."""
    cfg = config.model if device is None else dataclasses.replace(config.model, device=device)
    if given.holds_model:
        return wrap_model(given.model, given.tokenizer, cfg)
    return read_model(cfg)


def adapted_models(config: Config, begin: HFModel, last: Path | None) -> tuple[HFModel, HFModel | None]:
    """`whole_models` with adapters: the reference is the same model with its adapters disabled."""
    model = adapted(begin, config.lora, config.train.seed)
    if last is not None:
        model.load(last / checkpoint.MODEL)
    if config.model.quantize != "none":
        model = packed(model, config.model)
    return model, Unadapted.of(model) if config.algorithm.beta else None


def leave_folder(config: Config, model: HFModel) -> None:
    """Notes in the model what its run began with, and that its weights are in no folder from here on, until `save_model`."""
    whole: Any = model.model
    whole.gspo_folder, whole.name_or_path = "", "" if config.model.path == GIVEN else config.model.path


def room(config: Config, limit: int | None, whose: str = "the model's context") -> int | None:
    """Tokens left for a prompt beside the longest completion of any stage, in a context of `limit` tokens or vLLM's smaller
    max_model_len (sampler.engine_args). None without a limit. Raises ValueError, naming `whose` context it is, if no prompt
    fits.
    """
    key, size = longest(config.rollout, config.stage)
    if (config.eval.max_completion_length or 0) > size:
        key, size = "eval.max_completion_length", config.eval.max_completion_length or 0
    own = underscored(config.sampler.engine_args).get("max_model_len")
    if type(own) is int and config.sampler.engine == "vllm" and own < (limit or own + 1):
        limit, whose = own, "vLLM's context (max_model_len in sampler.engine_args)"
    if limit is not None and limit <= size:
        raise ValueError(f"{key} = {size} leaves no room for a prompt: {whose} is {limit} tokens; lower it")
    return None if limit is None else limit - size


def check_fit(config: Config, prompts: Sequence[Prompt], limit: int | None) -> None:
    """Raises ValueError for a prompt that has no room in the context of the engine, which is known once that runs, or of the
    teacher.
    """
    whose = "the context of the engine (vLLM's max_model_len) or of the teacher"
    left = room(config, limit, whose) if prompts else None
    most = max((len(prompt.tokens) for prompt in prompts), default=0)
    if left is not None and most > left:
        raise ValueError(
            f"{whose} leaves {left} tokens for a prompt, and the longest has {most}: start it with a longer one, or lower "
            "rollout.max_completion_length or eval.max_completion_length (the longer)"
        )


def check_stops(config: Config, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError for a stop string that the tokenizer rules out. `samplings` also knows the model's stop tokens."""
    rollout = config.rollout
    stops_by_kind(tokenizer, Sampling(1, stop=tuple(rollout.stop), keep_special_tokens=rollout.keep_special_tokens))


def prompts_of(
    config: Config,
    given: CallInputs,
    outline: Outline,
    tables: tuple[Table, Table] | None = None,
    overlap: Overlap | None = None,
) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out prompts that fit the model's context. tables: their rows, if already read."""
    limit = room(config, outline.context_length)
    check_stops(config, outline.tokenizer)
    encoder = Encoder(outline.tokenizer, config.task, default_system(config))
    tables = tables or read_tables(config.task, config.eval, given.rows, given.eval_rows)
    prompts, held_out = load_prompts(config.task, tables, encoder, limit, overlap)
    asked = config.task.system + str([prompt.messages for prompt in (*prompts[:1], *held_out[:1])])
    tags_alone = "task" in config.reward.functions and default_system(config)
    if tags_alone and encoder.template is not None and not encoder.defaulted and "<answer>" not in asked:
        logger.warning("the reward task reads <answer>...</answer>; neither task.system nor the prompts say so")
    return prompts, held_out


def evaluated_prompts(config: Config, given: CallInputs, outline: Outline) -> list[Prompt]:
    """The prompts to evaluate: all given rows, or else those that the task holds out."""
    rows = table(given.rows, "the data set") if given.rows is not None else read_tables(config.task, config.eval)[1]
    return prompts_of(config, given, outline, (rows.part(0, 0), rows))[1]


def all_rows(config: Config) -> Config:
    """`config` without row counts, held-out splits and options of its own source, so that every given row is evaluated."""
    task = dataclasses.replace(config.task, size=None, eval_source=None, eval_split=None, benchmarks=[])
    if task.source == GIVEN:
        task = dataclasses.replace(task, split=TaskConfig.split, config={})
    return dataclasses.replace(
        config, task=task, eval=dataclasses.replace(config.eval, every=0, num_prompts=EvalConfig.num_prompts)
    )


def check_experts(config: Config, model: HFModel) -> None:
    """Raises ValueError if model.expert_kernels is set for a model without selectable expert kernels."""
    kernels = config.model.expert_kernels
    if kernels != "auto" and not model.model._can_set_experts_implementation():
        why = f"{type(model.model).__name__} has no experts whose kernels can be chosen"
        raise ValueError(f'model.expert_kernels = {kernels!r}: {why}: set it to "auto"')


def check_routers(config: Config, model: HFModel) -> None:
    """Raises ValueError if the model has no routers to balance (aux_loss), or no routing that can be replayed."""
    if config.algorithm.aux_loss and not routers.routers(model.model):
        why = f"{routers.no_routers(model.model)}, so there is no load to balance"
        raise ValueError(f"algorithm.aux_loss = {config.algorithm.aux_loss:g}: {why}: set it to 0")
    if config.algorithm.router_replay != "none":
        try:
            if model.device.type == "meta":
                routing.replayable(model.model)
            else:
                tokens = example_token_ids(model, 5)
                routing.check(model.model, lambda: model.hidden(input_ids=tokens))
        except ValueError as error:
            raise ValueError(f"algorithm.router_replay = {config.algorithm.router_replay!r}: {error}") from None
