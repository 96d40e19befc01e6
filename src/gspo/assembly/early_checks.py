"""Checks a run against the configuration and tokenizer of its model, without reading weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from gspo.assembly.dates import dated
from gspo.assembly.models import check_experts, check_routers, room
from gspo.assembly.teacher import check_teacher, teacher_settings
from gspo.backends.hf.files import load_tokenizer, outline
from gspo.backends.hf.load import check_end, without_weights
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.model import HFModel
from gspo.config.answer_format import default_system
from gspo.config.local_model import local_copy
from gspo.config.needs import readable
from gspo.config.policy import ModelConfig
from gspo.config.rollout import RolloutConfig, TaskConfig
from gspo.config.schema import Config
from gspo.config.source_kind import in_environment, kind
from gspo.data.chat_template import Encoder, decoded
from gspo.data.loaders import Table, generate, read
from gspo.data.prompts import first_prompts
from gspo.runs.log import prompt_text
from gspo.types import Prompt


def checked_prompts(config: Config, here: ModelConfig, count: int) -> tuple[list[Prompt], str]:
    """Raises ValueError, as the run itself would, for settings that the model in local folders (`here`) rules out.

    Returns the first `count` training prompts, and the first one as the model reads it, for the terminal; ([], "") for a
    source on the Hub, for prompts of an environment, and without needed packages.
    """
    if not readable(config):
        return [], ""
    tokenizer = load_tokenizer(here)
    limit = check_model(config, here, tokenizer)
    config = dated(config, tokenizer)
    rows = rows_here(config.task, count)
    if rows is None:
        return [], ""
    prompts = first_prompts(config.task, Encoder(tokenizer, config.task, default_system(config)), limit, rows, count)
    return prompts, prompt_text(decoded(tokenizer, prompts[0].tokens), len(prompts[0].tokens)) if prompts else ""


def rows_here(task: TaskConfig, count: int) -> Table | None:
    """The training rows, at most `count` generated ones; None if they are not here or an environment writes the prompts."""
    of = None if in_environment(task) or not task.source else kind(task.source)
    if of == "generated":
        return generate(task.source, task, count, 0)[0]
    return read(task.source, task, task.split) if of in ("file", "function", "saved") else None


def check_model(config: Config, here: ModelConfig, tokenizer: Any) -> int | None:
    """Checks settings and tokenizer against the model. Returns how many tokens a prompt may have; None without a limit."""
    model = without_weights(here)
    if (Path(here.path) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(here.path)
    made = HFModel(model, tokenizer, None)
    found = outline(model, tokenizer)
    limit = found.context_length
    check_end(made)
    check_experts(config, made)
    check_routers(config, made)
    if config.lora.rank:
        model.name_or_path = here.path
        adapted(made, config.lora)
    if config.teacher.local and (there := local_copy(teacher_settings(config))) is not None:
        check_teacher(config, found, there)
    # `gspo sft` leaves [rollout] as it is, and `gspo serve` has no task.
    samples = config.task.source and config.rollout != RolloutConfig()
    return room(config, limit) if samples else limit
