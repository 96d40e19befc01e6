"""The prompts of a benchmark, and a model to answer them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.dates import dated, of_its_day, with_date
from gspo.assembly.models import check_here, evaluated_prompts, loaded_model, outline_of
from gspo.assembly.samplers import EVAL_SEED, eval_temperature, evaluator_of, samplings, speaker_of
from gspo.backends.hf.files import check_folder, commit_of, commit_of_tokenizer, is_adapter, of_base
from gspo.backends.hf.gguf import converted
from gspo.backends.hf.policy import HFPolicy
from gspo.config.conflicts import ENGINE, check_conflicts
from gspo.config.import_function import pick_device
from gspo.config.policy import ModelConfig
from gspo.config.schema import Config
from gspo.interfaces import seed_of
from gspo.launch.processes import timed
from gspo.types import Prompt, Rollout, Sampling

Rows = Sequence[dict[str, Any]]
Begin = Callable[[int, int], Future[Rollout]]
"""Starts a completion, given the index of its prompt and its own number."""
NUMBERS = ("dtype", "autocast", "attention", "expert_kernels", "quantize")
"""Model settings that affect its numerical results."""


def version(cfg: ModelConfig) -> str:
    """Identifies the files of a model: its commit on the Hugging Face Hub, or a hash of names, sizes and modification times
    in its folder. Includes the base model of an adapter and a separate tokenizer. Raises ValueError for a missing model.
    """
    check_folder(cfg)
    cfg = converted(cfg)
    folder = Path(cfg.path)
    found = [_of_files(folder) if folder.is_dir() else f"commit {commit_of(cfg)}"]
    if is_adapter(cfg.path):
        found.append(f"base {of_base(cfg, lambda base: version(dataclasses.replace(base, tokenizer=None)))}")
    if cfg.tokenizer:
        own = Path(cfg.tokenizer)
        found.append(f"tokenizer {_of_files(own) if own.is_dir() else f'commit {commit_of_tokenizer(cfg.tokenizer)}'}")
    return ", ".join(found)


def computation(cfg: ModelConfig) -> dict[str, str]:
    """What a model's results depend on besides its files: dtypes, kernels, and the kind of device, which resolves "auto"."""
    return {name: getattr(cfg, name) for name in NUMBERS} | {"device": pick_device(cfg.device).type}


def _of_files(folder: Path) -> str:
    files = sorted(path for path in folder.glob("*") if path.is_file())
    facts = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def on_its_day(config: Config, begun: str | None) -> Config:
    """`config` with the day that the chat template writes: that on which the evaluation began, if it goes on."""
    config = of_its_day(with_date(config, config.task.date or begun))
    return dated(config, outline_of(config, CallInputs(), None).tokenizer)


def encoded(config: Config, rows: Rows) -> list[Prompt]:
    """The tokenized prompts, with the ids of their rows. Raises ValueError if one does not fit the model's context."""
    check_conflicts(config, ENGINE)
    given = CallInputs(rows=list(rows))
    check_here(config, given, None)
    task = dataclasses.replace(config.task, too_long="refuse")
    rollout = dataclasses.replace(config.rollout, max_completion_length=1)  # nothing is trained: only eval's counts
    refuse = dataclasses.replace(config, task=task, rollout=rollout)
    prompts = evaluated_prompts(refuse, given, outline_of(config, given, None))
    return [dataclasses.replace(prompt, id=str(row["id"])) for prompt, row in zip(prompts, rows)]


def worded(config: Config, rows: Rows) -> list[Prompt]:
    """The prompts as sent to an endpoint: text without token ids."""
    return [
        Prompt(str(row["id"]), row["prompt"], (), {k: v for k, v in row.items() if k != "prompt"}, config.task.source)
        for row in rows
    ]


def sampling_of(config: Config) -> Sampling:
    """The sampling settings sent to an endpoint."""
    evaluation, rollout = config.eval, config.rollout
    longest = evaluation.max_completion_length or rollout.max_completion_length
    chosen = eval_temperature(config), evaluation.top_p, evaluation.top_k
    return Sampling(longest, *chosen, tuple(rollout.stop), seed=EVAL_SEED + config.train.seed)


def seed_at(config: Config, prompt: int, number: int) -> int:
    """The seed of completion `number` of the prompt with index `prompt`, independent of what else is sampled."""
    return seed_of(EVAL_SEED + config.train.seed, prompt, number)


@contextmanager
def answering(config: Config, prompts: Sequence[Prompt]) -> Iterator[tuple[Begin, int]]:
    """Loads the model. Yields a function that starts a completion, and how many completions may run concurrently."""
    with timed(f"the model {config.model.path}"):
        model = loaded_model(config, CallInputs())
    policy = HFPolicy(model, config.rollout.temperature)
    sampling = dataclasses.replace(samplings(config, model)[1], seed=0)
    with evaluator_of(config, policy) as sampler, speaker_of(config, sampler) as speaker:

        def begin(prompt: int, number: int) -> Future[Rollout]:
            return speaker.begin(Rollout.begun(prompts[prompt]), seed_at(config, prompt, number), sampling).future

        many = max(1, config.sampler.engines, len(config.sampler.urls)) if config.sampler.engine == "vllm" else 1
        yield begin, config.sampler.batch_size * many
