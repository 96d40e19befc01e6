"""Configuration -> the objects of a run. Alone names the concrete backends."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gspo import checkpoint, cold_start, moe
from gspo.ahead import AheadSource
from gspo.backends.hf_critic import Critic
from gspo.backends.hf_files import Outline, outline, read_outline
from gspo.backends.hf_lora import Unadapted, adapted, read_model
from gspo.backends.hf_model import HFModel, probe, wrap_model
from gspo.backends.hf_policy import HFPolicy
from gspo.backends.hf_sampler import HFSampler
from gspo.config import Config, ModelConfig
from gspo.configfile import check_sampler
from gspo.data.rewards import Rewards
from gspo.data.tasks import PromptStream, load_prompts, load_rows
from gspo.data.templates import Encoder
from gspo.guard import Guard
from gspo.learner import Learner
from gspo.objective.algorithms import resolve
from gspo.opening import claimed, digest, open_run
from gspo.optimiser import Optimiser
from gspo.policy_objective import PolicyObjective
from gspo.ports import Sampler
from gspo.progress import Progress
from gspo.rollout import SynchronousSource
from gspo.run import Run, restore
from gspo.runlog import RunLog
from gspo.types import Prompt, Sampling

EVAL_SEED = 1 << 40  # far from every training seed


@dataclasses.dataclass
class Given:
    """What a Python caller hands over in place of names in the configuration."""

    model: Any = None
    tokenizer: Any = None
    rows: Any = None
    eval_rows: Any = None
    functions: Sequence[Callable[..., Any]] = ()


def resolved(config: Config) -> tuple[Config, list[str]]:
    """The configuration with the algorithm's defaults filled in, and warnings. Raises ValueError."""
    _, algorithm, found = resolve(config.algorithm)
    config = dataclasses.replace(config, algorithm=algorithm)
    assert algorithm.mini_batches is not None
    if config.rollout.num_prompts % algorithm.mini_batches:
        raise ValueError(
            f"rollout.num_prompts = {config.rollout.num_prompts} cannot be split into algorithm.mini_batches = "
            f"{algorithm.mini_batches} equal updates: make it a multiple"
        )
    return config, found


def loading(what: str) -> AbstractContextManager[Any]:
    """A spinner where there is a terminal."""
    return Console(stderr=True).status(f"loading {what}")


def named(config: Config, last: Path | None) -> ModelConfig:
    """The model to load: the configured one, or that of a checkpoint."""
    if last is None:
        return config.model
    return dataclasses.replace(config.model, path=str(last / checkpoint.MODEL), tokenizer=None, revision=None)


def outline_of(config: Config, given: Given, last: Path | None) -> Outline:
    """What the prompts need of the model, without its weights."""
    loaded = given.model is not None and not isinstance(given.model, (str, Path))
    return outline(given.model, given.tokenizer) if loaded else read_outline(named(config, last))


def models_of(config: Config, given: Given, last: Path | None) -> tuple[HFModel, HFPolicy | None]:
    """The model to train, given or by name, with the weights of a checkpoint; and the frozen reference of the KL term,
    which is the model that training began with (None where beta is 0).
    """
    loaded = given.model is not None and not isinstance(given.model, (str, Path))
    begin: HFModel | None = None
    if loaded:
        begin = wrap_model(given.model, given.tokenizer, config.model)
    elif last is None or config.algorithm.beta > 0 or config.lora.rank:
        begin = read_model(config.model)
    if config.lora.rank and begin is not None:
        return adapted_models(config, begin, last)
    reference = None
    if config.algorithm.beta > 0 and begin is not None:
        frozen = dataclasses.replace(begin, model=copy.deepcopy(begin.model))
        frozen.model.requires_grad_(False)
        reference = HFPolicy(frozen, config.rollout.temperature, config.train.layout)
    if last is not None:
        saved = read_model(named(config, last))
        if not loaded or begin is None:
            return saved, reference
        begin.model.load_state_dict(saved.model.state_dict())
    assert begin is not None
    return begin, reference


def adapted_models(config: Config, begin: HFModel, last: Path | None) -> tuple[HFModel, HFPolicy | None]:
    """`models_of` with adapters: the reference is the same model with its adapters switched off."""
    model = adapted(begin, config.lora, config.train.seed)
    if last is not None:
        model.load(last / checkpoint.MODEL)
    if not config.algorithm.beta:
        return model, None
    return model, HFPolicy(Unadapted.of(model), config.rollout.temperature, config.train.layout)


def room(config: Config, limit: int | None) -> int | None:
    """Longest prompt in tokens beside the longest reply in a context of `limit`. Raises ValueError where none fits."""
    longest = {"rollout": config.rollout.max_completion_length, "eval": config.eval.max_completion_length or 0}
    section = max(longest, key=lambda name: longest[name])
    if limit is not None and limit <= longest[section]:
        raise ValueError(
            f"{section}.max_completion_length = {longest[section]} leaves no room for a prompt: the model's context is "
            f"{limit} tokens"
        )
    return None if limit is None else limit - longest[section]


def samplings(config: Config, model: HFModel) -> tuple[Sampling, Sampling]:
    """How replies are sampled in training and in evaluation."""
    rollout, evaluation = config.rollout, config.eval
    train = Sampling(
        rollout.max_completion_length, rollout.temperature, rollout.top_p, rollout.top_k, tuple(rollout.stop),
        model.stop_ids, config.train.seed,
    )  # fmt: skip
    held_out = dataclasses.replace(
        train,
        max_new_tokens=evaluation.max_completion_length or rollout.max_completion_length,
        temperature=evaluation.temperature,
        top_p=evaluation.top_p,
        top_k=evaluation.top_k,
        seed=EVAL_SEED + config.train.seed,
    )
    return train, held_out


def prompts_of(config: Config, given: Given, seen: Outline) -> tuple[list[Prompt], list[Prompt]]:
    """Training and held-out prompts that fit the model."""
    limit = room(config, seen.context_length)
    encoder = Encoder(seen.tokenizer, config.task)
    return load_prompts(config.task, config.eval, encoder, limit, rows=given.rows, eval_rows=given.eval_rows)


@contextmanager
def samplers_of(config: Config, policy: HFPolicy, keep: Path | None = None) -> Iterator[tuple[Sampler, Sampler]]:
    """Who samples in training, and in evaluation: the policy itself; a copy with rounded weights, and the policy; vLLM.
    keep: the run folder, for the engine's output.
    """
    if config.sampler.engine == "vllm":
        from gspo.backends.vllm_opening import opened

        with opened(config, policy, keep) as engine:
            yield engine, engine
        return
    exact = HFSampler(policy.model, config.sampler.batch_size)
    if config.sampler.quantize == "none":
        yield exact, exact
        return
    coarse = dataclasses.replace(policy.model, model=copy.deepcopy(policy.model.model))
    sampler = HFSampler(coarse, config.sampler.batch_size, config.sampler.quantize)
    sampler.load(policy, 0)
    yield sampler, exact


def check_routers(config: Config, model: HFModel) -> None:
    """Raises ValueError where there is no routing to replay, or none that can be, or no load to balance."""
    if config.algorithm.aux_loss and not moe.routers(model.model):
        raise ValueError(
            f"algorithm.aux_loss = {config.algorithm.aux_loss:g}: {type(model.model).__name__} is dense (no top-k routers), "
            "so there is no load to balance: set it to 0"
        )
    if config.algorithm.router_replay != "none":
        tokens = probe(model, 5)
        try:
            moe.check(model.model, lambda: model.hidden(input_ids=tokens))
        except ValueError as error:
            raise ValueError(f"algorithm.router_replay = {config.algorithm.router_replay!r}: {error}") from None


@contextmanager
def training(config: Config, resume: bool = False, given: Given | None = None) -> Iterator[tuple[Run, HFModel]]:
    """A training run, ready for trainer.train, and its model. A new run folder is made last, when all else has loaded."""
    given = given or Given()
    config, odd = resolved(config)
    with (
        claimed(config, resume) as (folder, last),
        Rewards(config.reward, config.task, given.functions) as scorer,
    ):
        with warnings.catch_warnings(record=True) as heard:
            with loading("the prompts"):
                prompts, held_out = prompts_of(config, given, outline_of(config, given, last))
                scorer.check([*prompts, *held_out])
                scorer.wait()
            with loading("the model"):  # last: what is wrong elsewhere shows in seconds, weights may take minutes
                model, reference = models_of(config, given, last)
        row, algorithm, _ = resolve(config.algorithm)
        critic = Critic(model, algorithm.critic or "shared") if row.critic else None
        policy = HFPolicy(
            model, config.rollout.temperature, config.train.layout, config.train.gradient_checkpointing, critic,
            router_logits=algorithm.aux_loss > 0,
        )  # fmt: skip
        per_step = (algorithm.mini_batches or 1) * algorithm.epochs
        optimiser = Optimiser(
            policy.parameters(), config.optimizer, config.train.steps * per_step, config.train.max_bad_updates
        )
        check_routers(config, model)
        sampling, eval_sampling = samplings(config, model)
        sampling = dataclasses.replace(sampling, routes=policy.sparse)
        stream = PromptStream(prompts, config.task.seed)
        source: Any = AheadSource if config.rollout.max_staleness else SynchronousSource
        rollout = config.rollout
        with (
            samplers_of(config, policy, Path(config.log.dir)) as (sampler, evaluator),
            open_run(config, folder, last, f"{algorithm.name} training") as (log, screen, state),
        ):
            warn_of(log, odd, heard, model)
            run = Run(
                config=config,
                policy=policy,
                reference=reference,
                sampler=sampler,
                evaluator=evaluator,
                scorer=scorer,
                prompts=stream,
                held_out=held_out,
                source=source(stream, sampler, scorer, rollout, sampling, screen.phase),
                eval_sampling=eval_sampling,
                learner=Learner(policy, optimiser, config.train.micro_batch_tokens, algorithm.router_replay != "none"),
                objective=PolicyObjective(row, algorithm, rollout.max_completion_length),
                log=log,
                screen=screen,
                decode=lambda token: str(model.tokenizer.decode([token])),
                data=digest([*prompts, *held_out]),
                guard=Guard(config.guard),
            )
            if state is not None:
                restore(run, state)
            log.event("info", f"{len(prompts)} training prompts, {len(held_out)} held out")
            yield run, model


@contextmanager
def imitating(
    config: Config, resume: bool = False, given: Given | None = None
) -> Iterator[tuple[cold_start.ColdStart, HFModel]]:
    """A supervised run, ready for cold_start.fit, and its model."""
    given = given or Given()
    with claimed(config, resume) as (folder, last):
        with warnings.catch_warnings(record=True) as heard:
            with loading("the rows"):
                seen = outline_of(config, given, last)
                encoder = Encoder(seen.tokenizer, config.task)
                # What `gspo train` would hold out of the same source is not imitated either.
                held_out = dataclasses.replace(config.eval, every=0)
                rows, _ = load_rows(config.task, held_out, encoder, seen.context_length, rows=given.rows)
            with loading("the model"):
                model, _ = models_of(config, given, last)
        policy = HFPolicy(model, 1.0, config.train.layout, config.train.gradient_checkpointing)
        optimiser = Optimiser(policy.parameters(), config.optimizer, config.train.steps, config.train.max_bad_updates)
        replies = [cold_start.imitated(row.prompt.tokens, row.completion) for row in rows]
        with open_run(config, folder, last, "cold start") as (log, screen, state):
            warn_of(log, [], heard, model)
            run = cold_start.ColdStart(
                config=config,
                policy=policy,
                rows=PromptStream(replies, config.task.seed),
                learner=Learner(policy, optimiser, config.train.micro_batch_tokens),
                log=log,
                screen=screen,
                data=digest([row.prompt for row in rows]),
            )
            if state is not None:
                cold_start.restore(run, state)
            log.event("info", f"{len(rows)} rows to imitate")
            yield run, model


def warn_of(log: RunLog, odd: Sequence[str], heard: Sequence[warnings.WarningMessage], model: HFModel) -> None:
    """Into the log: odd settings, and what was heard while loading."""
    for text in [*odd, *(str(one.message) for one in heard if issubclass(one.category, UserWarning))]:
        log.warn(text)
    if model.model.dtype != torch.float32:
        log.warn(
            f"the weights are trained in {model.model.dtype}, where an update smaller than about 1/256 of a weight is lost; "
            'model.dtype = "float32" keeps it (matrix products still run in bfloat16 on a GPU)'
        )


@contextmanager
def evaluating(config: Config) -> Iterator[dict[str, Any]]:
    """The arguments of evaluation.evaluate for the model and the held-out prompts that `config` names."""
    check_sampler(config)
    with Rewards(config.reward, config.task) as scorer:
        with loading("the prompts"):
            _, held_out = prompts_of(config, Given(), read_outline(config.model))
            if not held_out:
                raise ValueError(
                    f"task.source = {config.task.source!r}: too few rows to hold out a tenth of them: give held-out prompts "
                    "as task.eval_source or task.eval_split"
                )
            scorer.check(held_out)
            scorer.wait()
        with loading("the model"):
            model = read_model(config.model)
        with samplers_of(config, HFPolicy(model)) as (_, sampler), Progress(0, title="evaluation") as screen:
            yield {
                "sampler": sampler,
                "scorer": scorer,
                "prompts": held_out,
                "n": config.eval.num_generations,
                "sampling": samplings(config, model)[1],
                "correct_at": config.reward.correct_at,
                "report": screen.phase,
            }
