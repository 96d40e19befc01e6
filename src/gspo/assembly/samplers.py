"""The samplers of a run and their settings, for training and evaluation."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from gspo.agents.batching import Batching
from gspo.agents.episodes import Episodes
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.models import whole_models
from gspo.backends.hf.lora import read_model
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.stopping import stops_by_kind
from gspo.backends.vllm.process import EngineHost
from gspo.config.engines import engine_function
from gspo.config.import_function import load_function
from gspo.config.schema import Config, RunConfig
from gspo.config.source_kind import in_environment
from gspo.config.stages import longest
from gspo.config.values import type_of
from gspo.data.chat_template import Encoder, decoded
from gspo.interfaces import Sampler, StreamingCompleter, StreamingSampler, Weights
from gspo.learner.weights import PolicyWeights
from gspo.runs import checkpoint
from gspo.types import Sampling

logger = logging.getLogger(__name__)

EVAL_SEED = 1 << 40  # far from every training seed


def samplings(config: Config, model: HFModel) -> tuple[Sampling, Sampling]:
    """Sampling settings for training and for evaluation. Raises ValueError for a stop string that can never occur."""
    rollout, evaluation = config.rollout, config.eval
    train = Sampling(
        rollout.max_completion_length, rollout.temperature, rollout.top_p, rollout.top_k, tuple(rollout.stop),
        model.stop_ids, config.train.seed, keep_special_tokens=rollout.keep_special_tokens,
    )  # fmt: skip
    stops_by_kind(model.tokenizer, train)  # before anything is sampled
    _warn_endless(config, model)
    return train, dataclasses.replace(
        train, max_new_tokens=evaluation.max_completion_length or longest(rollout, config.stage)[1],
        temperature=eval_temperature(config), top_p=evaluation.top_p, top_k=evaluation.top_k,
        seed=EVAL_SEED + config.train.seed,
    )  # fmt: skip


def _warn_endless(config: Config, model: HFModel) -> None:
    """Warns if no completion ends where the chat template ends a turn: the policy would make up the other side's."""
    tokenizer, mark = model.tokenizer, "the last words"
    if config.task.template == "none" or not tokenizer.chat_template:
        return
    with suppress(ValueError):  # a template that refuses these messages
        talk = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": mark}]
        after = Encoder(tokenizer, config.task).render(talk).rpartition(mark)[2]
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        ends = sorted((token for token in special if token in after), key=after.index)
        stops = *config.rollout.stop, *(decoded(tokenizer, [i]) for i in model.stop_ids)
        if ends and not any(stop in after for stop in stops):
            logger.warning(
                f"the chat template ends a turn with {ends[0]}, which ends no completion, so the policy would go on with "
                f'turns that it makes up: set rollout.stop = ["{ends[0]}"], or have it as the tokenizer\'s eos_token'
            )


def eval_temperature(config: Config) -> float:
    """The sampling temperature of evaluations."""
    return config.rollout.temperature if config.eval.temperature is None else config.eval.temperature


@contextmanager
def samplers_of(
    config: Config, policy: HFPolicy, weights: Weights, keep: Path | None = None, hosts: Sequence[EngineHost] = ()
) -> Iterator[tuple[Sampler, Sampler]]:
    """Yields the samplers for training and for evaluation, perhaps the same. keep: the run folder, for vLLM's output."""
    with ExitStack() as stack:
        if config.sampler.engine == "vllm":
            from gspo.backends.vllm.open import opened

            engine: Sampler = stack.enter_context(opened(config, policy, weights, keep, hosts))
            pair = engine, engine
        elif config.sampler.engine == "embedded":
            model = read_model(config.model) if policy.model.sharded else policy.model
            embedded = HFSampler(model, config.sampler.batch_size)
            if policy.model.sharded:
                embedded.load(weights)
            pair = embedded, embedded
        else:
            pair = stack.enter_context(custom(config, policy.model))
            for each in dict.fromkeys(pair):
                each.load(weights)
        players = {each: stack.enter_context(playing(config, policy.model, each)) for each in dict.fromkeys(pair)}
        yield players[pair[0]], players[pair[1]]


@contextmanager
def custom(config: Config, model: HFModel) -> Iterator[tuple[Sampler, Sampler]]:
    """Yields the samplers that the function `sampler.engine` makes. Raises ValueError if it makes something else."""
    made = engine_function(config.sampler)(config, model, **config.sampler.engine_args)
    with made if hasattr(made, "__exit__") else nullcontext(made) as found:
        pair = found if isinstance(found, tuple) and len(found) == 2 else (found, found)
        for each in pair:
            if missing := [name for name in vars(Sampler) if not name.startswith("_") and not hasattr(each, name)]:
                wrong = f"returned {type_of(each)} without {', '.join(missing)}"
                remedy = "return a gspo.interfaces.Sampler, or a pair of them"
                raise ValueError(f"sampler.engine = {config.sampler.engine!r}: {wrong}: {remedy}")
        yield pair


@contextmanager
def evaluator_of(config: Config, policy: HFPolicy) -> Iterator[Sampler]:
    """Yields the sampler for evaluation without training."""
    with samplers_of(config, policy, PolicyWeights(policy, 0)) as (_, sampler):
        yield sampler


@contextmanager
def playing(config: Config, model: HFModel, sampler: Sampler) -> Iterator[Sampler]:
    """Yields the sampler, or one of whole episodes if the task is played in an environment."""
    task = config.task
    if not in_environment(task):
        yield sampler
        return
    with speaker_of(config, sampler) as speaker:
        needed = sampler, speaker, Encoder(model.tokenizer, task), model.context_length, task
        if task.environment is None:
            from gspo.agents.verifiers_episodes import VerifiersEpisodes

            opened: Any = VerifiersEpisodes(*needed)
        else:
            opened = Episodes(*needed, load_function(task.environment, "task.environment"))
        with opened as episodes:
            yield episodes


@contextmanager
def speaker_of(config: Config, sampler: Sampler) -> Iterator[StreamingCompleter]:
    """Yields a sampler of single completions: vLLM, or the embedded sampler behind a queue that batches requests."""
    if config.sampler.engine == "vllm":
        yield cast(StreamingSampler, sampler)
        return
    with closing(Batching(sampler)) as batching:
        yield batching


@contextmanager
def checkpoint_sampler(config: RunConfig, folder: Path | None) -> Iterator[StreamingCompleter]:
    """Yields a sampler of the weights in a checkpoint; folder = None: of the weights that the run began with."""
    without_reference = dataclasses.replace(config, algorithm=dataclasses.replace(config.algorithm, beta=0.0))
    sampler = HFSampler(whole_models(without_reference, CallInputs(), folder)[0], config.sampler.batch_size)
    sampler.version = checkpoint.read_state(folder)["version"] if folder else 0
    with closing(Batching(sampler)) as batching:
        yield batching
