"""The teacher of on-policy distillation: loads it, and checks that it can read what the policy samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from gspo.backends.hf.files import Outline, check_expert_parallel, expert_counts, read_outline
from gspo.backends.hf.model import HFModel
from gspo.config.policy import ModelConfig
from gspo.config.schema import Config
from gspo.config.source_kind import in_environment
from gspo.config.stages import longest
from gspo.types import Prompt


def teacher_settings(config: Config) -> ModelConfig:
    """The teacher as a model to load: what [teacher] leaves open is as in [model]."""
    teacher = config.teacher
    return dataclasses.replace(
        config.model, path=teacher.path, revision=teacher.revision, dtype=teacher.dtype, tokenizer=None, quantize="none",
        expert_kernels="auto",
    )  # fmt: skip


def load_teacher(config: Config, load: Callable[[ModelConfig], HFModel]) -> HFModel | None:
    """The teacher, read by `load`; None without one, and for one behind an endpoint."""
    if not config.teacher.local:
        return None
    with teacher_errors():
        return load(teacher_settings(config))


def check_teacher(config: Config, model: Outline, teacher: ModelConfig) -> None:
    """Raises ValueError if the teacher has another vocabulary or chat template than the model to train, embeds fewer tokens,
    or has a shorter context. Loads no weights. teacher: `teacher_settings`, perhaps with a local copy of the folder.
    """
    key = f"teacher.path = {config.teacher.path!r}"
    with teacher_errors():
        found = read_outline(teacher)
        check_expert_parallel(teacher, config.scale.expert_parallel, expert_counts(found.config)[1])
    ids, others = model.tokenizer.get_vocab(), found.tokenizer.get_vocab()
    for token in sorted(ids, key=ids.__getitem__):
        if others.get(token) != ids[token]:
            there = f"id {others[token]}" if token in others else "unknown"
            wrong = f"another vocabulary than the model's: {token!r} is id {ids[token]} here and {there} there"
            raise ValueError(f"{key}: {wrong}; choose a teacher with the same token ids")
    if config.task.template == "auto" and model.tokenizer.chat_template != found.tokenizer.chat_template:
        remedy = f'set model.tokenizer = {config.teacher.path!r} to use the teacher\'s, or task.template = "none"'
        raise ValueError(f"{key}: its chat template is not the model's, so prompts would look foreign to it: {remedy}")
    rows, known = (outline.config.get_text_config().vocab_size for outline in (model, found))
    if known < rows:
        raise ValueError(f"{key}: embeds {known} tokens, but the model may sample {rows}: choose a teacher with as many")
    limit, own = found.context_length, model.context_length
    if limit is not None and (own is None or limit < own):
        wrong = f"its context is {limit} tokens, the model's {own or 'unlimited'}"
        raise ValueError(f"{key}: {wrong}: choose a teacher that reads as many")


def longest_reading(config: Config, prompts: Sequence[Prompt]) -> int | None:
    """Tokens that a teacher behind an endpoint must be able to read: the longest prompt and completion, and the token that
    vLLM adds to each request. None for conversations, which end where the teacher's context does.
    """
    if not prompts or in_environment(config.task):
        return None
    return max(len(prompt.tokens) for prompt in prompts) + longest(config.rollout, config.stage)[1] + 1


@contextmanager
def teacher_errors() -> Iterator[None]:
    """Context for reading the teacher: error messages name the keys of [teacher]."""
    try:
        yield
    except ValueError as error:
        text = str(error).replace("model.path", "teacher.path").replace("model.revision", "teacher.revision")
        raise ValueError(text.replace("; set model.tokenizer", "; add the files of its tokenizer")) from None
