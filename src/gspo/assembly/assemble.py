"""Builds a run from its configuration: prompts, model, samplers, learner and run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gspo.assembly import rank
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.host_memory import check_copies
from gspo.assembly.learners import learning, supervised_learning
from gspo.assembly.micro_batch_limit import UNTIL
from gspo.assembly.models import check_here, evaluated_prompts, loaded_model, models_of, outline_of, prompts_of
from gspo.assembly.queries import OtherSources, curriculum
from gspo.assembly.samplers import evaluator_of, samplers_of, samplings
from gspo.assembly.scorers import scorer_of
from gspo.backends.hf import fused
from gspo.backends.hf.load import by_kernels
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.process import EngineHost
from gspo.config.algorithm import resolved
from gspo.config.schema import Config, RunConfig
from gspo.config.stages import rollout_at
from gspo.data.chat_template import Encoder
from gspo.data.decontamination import Overlap
from gspo.data.prompts import Notice, PromptStream, digest, load_demonstrations
from gspo.data.splits import check_columns, read_stages, read_tables, refresh_function
from gspo.distributed.ranks import ProcessRanks
from gspo.interfaces import Learner, Report, RolloutSource, Scorer, SupervisedLearner
from gspo.launch.ray_actors import engine_hosts
from gspo.learner.leader_follower import LeadingLearner
from gspo.learner.learner import LocalLearner
from gspo.objective.algorithms import ALGORITHMS
from gspo.rollout.asynchronous import AsynchronousSource
from gspo.rollout.dynamic_sampling import DynamicSamplingSource
from gspo.rollout.external import AlreadyScored, ExternalSource
from gspo.rollout.synchronous import SynchronousSource
from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog
from gspo.runs.open import claimed, open_run, own_warnings
from gspo.runs.progress import Progress
from gspo.training import sft
from gspo.training.guard import Guard
from gspo.training.state import Run, restore
from gspo.types import Prompt, Sampling


def loading(what: str) -> AbstractContextManager[Any]:
    """A spinner, if there is a terminal."""
    return Console(stderr=True).status(f"loading {what}")


@contextmanager
def training(
    config: Config, resume: bool = False, given: CallInputs | None = None, allowed: Collection[str] = ()
) -> Iterator[tuple[Run, HFModel]]:
    """Yields a run ready for trainer.train, and its model. A new run folder is created last, once all else has loaded."""
    given = given or CallInputs()
    config, odd = resolved(config)
    with (
        rank.joined(config.scale) as ranks,
        claimed(config, resume, allowed) as (folder, last),
        engine_hosts(config) as hosts,
        scorer_of(config, given) as scorer,
    ):
        heard: list[Warning] = []
        with own_warnings(heard.append):
            with loading("the prompts"):  # first: errors here surface before anything is downloaded
                check_here(config, given, last)
                tables = read_tables(config.task, config.eval, given.rows, given.eval_rows)
                needs = getattr(scorer, "needs", {})
                check_columns(tables, config.task, needs)
                stages = read_stages(config.task, config.stage, needs)
                if config.refresh.every and config.refresh.source is not None:
                    refresh_function(config.refresh.source, config.refresh.every)
                overlap = Overlap(config.task, tables)
                outline = outline_of(config, given, last)
                prompts, held_out = prompts_of(config, given, outline, tables, overlap)
                scorer.check([*prompts, *held_out])
                others = OtherSources(config, outline, overlap, held_out, scorer.check, stages)
                queries = curriculum(config, prompts, others)
                scorer.wait()
            with loading("the model"):  # last: other errors surface in seconds, weights may take minutes
                check_copies(config, ranks.size if ranks else 1)
                rank.begin(ranks, "train", config, last)
                model, reference = models_of(config, given, last, ranks)

        def source(sampler: Any, sampling: Sampling, report: Report) -> RolloutSource:
            rollout = config.rollout
            if rollout.refill:
                return DynamicSamplingSource(queries, sampler, scorer, rollout, config.algorithm, sampling, report)
            kind = AsynchronousSource if rollout.max_staleness else SynchronousSource
            return kind(queries, sampler, scorer, rollout, sampling, report)

        loaded = Loaded(model, reference, odd, heard, prompts, held_out, ranks, hosts)
        with assembled(config, loaded, folder, last, source, scorer) as run:
            run.log.note(f"{len(prompts)} training prompts, {counted(len(held_out), config.eval.every > 0)}")
            yield run, model


@contextmanager
def serving(
    config: Config, resume: bool = False, given: CallInputs | None = None, allowed: Collection[str] = ()
) -> Iterator[tuple[Run, ExternalSource, HFModel]]:
    """Yields a run that trains on rollouts of external agents, the source that receives them, and its model."""
    given = given or CallInputs()
    config, odd = resolved(config, samples=False)
    with (
        rank.joined(config.scale) as ranks,
        claimed(config, resume, allowed, "serve") as (folder, last),
        engine_hosts(config) as hosts,
    ):
        heard: list[Warning] = []
        with own_warnings(heard.append), loading("the model"):
            check_copies(config, ranks.size if ranks else 1)
            rank.begin(ranks, "train", config, last)
            model, reference = models_of(config, given, last, ranks)

        sources: list[ExternalSource] = []

        def source(sampler: Any, sampling: Sampling, report: Report) -> ExternalSource:
            sources.append(ExternalSource(sampler, sampling))
            return sources[0]

        loaded = Loaded(model, reference, odd, heard, ranks=ranks, hosts=hosts)
        with assembled(config, loaded, folder, last, source, AlreadyScored(), "serve") as run:
            yield run, sources[0], model


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The loaded parts of a run.

    Attributes:
        odd: Warnings about the settings.
        heard: Warnings and notices raised while loading.
        hosts: Machines on which vLLM starts; empty for this one.
    """

    model: HFModel
    reference: HFPolicy | None
    odd: Sequence[str]
    heard: Sequence[Warning]
    prompts: Sequence[Prompt] = ()
    held_out: Sequence[Prompt] = ()
    ranks: ProcessRanks | None = None
    hosts: Sequence[EngineHost] = ()


@contextmanager
def assembled(
    config: RunConfig,
    loaded: Loaded,
    folder: RunFolder | None,
    last: Path | None,
    source: Callable[[Any, Sampling, Report], RolloutSource],
    scorer: Scorer,
    command: str = "train",
) -> Iterator[Run]:
    """Yields a run made of its loaded parts, with samplers and folder, restored from the checkpoint `last` if there is one.

    Args:
        command: "train", or "serve" for a run with an unknown number of steps.
    """
    model, row = loaded.model, ALGORITHMS[config.algorithm.name]
    policy, local = learning(config, model, loaded.reference, loaded.ranks)
    learner: Learner = LeadingLearner(local, loaded.ranks) if loaded.ranks else local
    sampling, eval_sampling = samplings(config, model)
    sampling = dataclasses.replace(sampling, routes=policy.sparse)
    with (
        samplers_of(config, policy, learner.publish(0), Path(config.log.dir), loaded.hosts) as (sampler, evaluator),
        open_run(config, folder, last, f"{config.algorithm.name} training", command) as (log, screen, state),
    ):
        for text in loaded.odd:
            log.warn(text)
        tell(log, loaded.heard, model)
        note_what_is_not_done(log, policy, config)
        listen(local, log)
        run = Run(
            config=config,
            row=row,
            sampler=sampler,
            evaluator=evaluator,
            scorer=scorer,
            held_out=loaded.held_out,
            source=source(sampler, sampling, screen.phase),
            sampling=sampling,
            eval_sampling=eval_sampling,
            learner=learner,
            log=log,
            screen=screen,
            decode=lambda token: str(model.tokenizer.decode([token])),
            data=digest([*loaded.prompts, *loaded.held_out]),
            guard=Guard(config.guard),
        )
        if state is not None:
            restore(run, state)
        if isinstance(learner, LeadingLearner):
            prompt = max((len(prompt.tokens) for prompt in loaded.prompts), default=1)
            tokens = prompt + rollout_at(config.rollout, config.stage, log.step + 1).max_completion_length
            learner.fit(min(tokens, model.context_length or tokens), model.config.vocab_size)
        yield run


def note_what_is_not_done(log: RunLog, policy: HFPolicy, config: Config) -> None:
    """Logs what this run has to do without: shared prompts (train.layout = "auto"), offloading (on a CPU), compiled CPU
    kernels, and metrics of an unknown router.
    """
    if policy.unseen:
        log.warn(f"{policy.unseen}: there are no moe/ metrics, and a change of routing is not noticed")
    if policy.unshared:
        log.event("info", f"trains on padded rows: {policy.unshared}")
    model = policy.model
    if not model.kernels and by_kernels(config.model, model.device.type, model.compute_dtype):
        log.event("info", f"no compiled kernels, so steps take longer: {fused.missing()}")
    if policy.device.type == "cpu" and (config.train.offload_optimizer or config.train.offload_reference):
        log.warn("train.offload_optimizer and train.offload_reference move nothing: the model is on a CPU")


def listen(learner: LocalLearner, log: RunLog) -> None:
    """Logs when micro-batches run out of memory, in this process or in an earlier start of the run."""
    parts = learner.micro_batches
    parts.tell = log.warn
    if parts.smaller:
        log.warn(f"{parts.smaller}: micro-batches have at most {parts.max_tokens} tokens, until {UNTIL} changes")


@contextmanager
def imitating(
    config: Config, resume: bool = False, given: CallInputs | None = None, allowed: Collection[str] = ()
) -> Iterator[tuple[sft.SupervisedRun, HFModel]]:
    """Yields a supervised run ready for sft.fit, and its model."""
    given = given or CallInputs()
    with rank.joined(config.scale) as ranks, claimed(config, resume, allowed, "sft") as (folder, last):
        heard: list[Warning] = []
        with own_warnings(heard.append):
            with loading("the rows"):
                outline = outline_of(config, given, last)
                encoder = Encoder(outline.tokenizer, config.task)
                # Rows that `gspo train` would hold out of the same source are held out here too.
                held_out = dataclasses.replace(config.eval, every=0)
                rows, left = load_demonstrations(config.task, held_out, encoder, outline.context_length, rows=given.rows)
            with loading("the model"):
                rank.begin(ranks, "sft", config, last)
                model, _ = models_of(config, given, last, ranks)
        policy, local = supervised_learning(config, model, ranks=ranks)
        learner: SupervisedLearner = LeadingLearner(local, ranks) if ranks else local
        completions = [sft.imitated(row.prompt.tokens, row.completion) for row in rows]
        with open_run(config, folder, last, "supervised fine-tuning", "sft") as (log, screen, state):
            tell(log, heard, model)
            note_what_is_not_done(log, policy, config)
            listen(local, log)
            run = sft.SupervisedRun(
                config=config,
                rows=PromptStream(completions, config.task.seed),
                learner=learner,
                log=log,
                screen=screen,
                data=digest([row.prompt for row in rows]),
            )
            if state is not None:
                sft.restore(run, state)
            if isinstance(learner, LeadingLearner):
                learner.fit(max(len(completion.tokens) for completion in completions), model.config.vocab_size)
            log.note(f"{len(rows)} rows to imitate, {counted(len(left), False)}")
            yield run, model


def counted(held_out: int, evaluated: bool) -> str:
    """How many prompts are held out, in words. evaluated: whether this run itself evaluates on them."""
    if not held_out:
        return "none held out"
    return f"{held_out} held out" + ("" if evaluated else " for `gspo eval` (eval.num_prompts = 0 holds out none)")


def texts_of(heard: Sequence[Warning]) -> Iterator[tuple[str, bool]]:
    """Yields the text of each recorded warning, and whether it is a warning rather than a notice."""
    for warning in heard:
        yield str(warning), not isinstance(warning, Notice)


def tell(log: RunLog, heard: Sequence[Warning], model: HFModel) -> None:
    """Logs and prints the warnings recorded while loading, and one if the model is trained in a 16-bit type."""
    for text, is_warning in texts_of(heard):
        (log.warn if is_warning else log.note)(text)
    trained = next((p.dtype for p in model.model.parameters() if p.requires_grad), torch.float32)
    if trained != torch.float32:
        log.warn(
            f"the weights are trained in {trained}, where an update smaller than about 1/256 of a weight is lost; "
            'model.dtype = "float32" keeps it (matrix products still run in bfloat16 on a GPU)'
        )


@contextmanager
def evaluating(config: Config, given: CallInputs | None = None) -> Iterator[dict[str, Any]]:
    """Yields the arguments of evaluation.evaluate for the given model and prompts, or those that `config` names."""
    given = given or CallInputs()
    if given.rows is None and not config.eval.num_prompts:
        raise ValueError("eval.num_prompts = 0: nothing is held out to evaluate on; raise it")
    with scorer_of(config, given) as scorer:
        heard: list[Warning] = []
        with loading("the prompts"), own_warnings(heard.append):
            held_out = evaluated_prompts(config, given, outline_of(config, given, None))
            if not held_out:
                raise ValueError(
                    f"task.source = {config.task.source!r}: too few rows to hold out a tenth of them: give held-out prompts "
                    "as task.eval_source or task.eval_split"
                )
            scorer.check(held_out)
            scorer.wait()
        with loading("the model"):
            model = loaded_model(config, given)
        policy = HFPolicy(model, config.rollout.temperature)
        with evaluator_of(config, policy) as sampler, Progress(0, title="evaluation") as screen:
            for text, is_warning in texts_of(heard):
                screen.note(f"warning: {text}" if is_warning else text)
            yield {
                "sampler": sampler,
                "scorer": scorer,
                "prompts": held_out,
                "n": config.eval.num_generations,
                "sampling": samplings(config, model)[1],
                "correct_at": config.reward.correct_at,
                "report": screen.phase,
            }
