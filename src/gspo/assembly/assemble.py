"""Builds a run from its configuration: prompts, model, samplers, learner and run folder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from gspo.assembly import rank
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.dates import dated, of_its_day, on_date
from gspo.assembly.host_memory import check_copies
from gspo.assembly.learners import LEARNERS, learning_rate, longest_read, size
from gspo.assembly.models import (
    check_fit,
    check_here,
    check_offload,
    check_stops,
    evaluated_prompts,
    leave_folder,
    loaded_model,
    models_of,
    named,
    outline_of,
    prompts_of,
    trained_outline,
)  # fmt: skip
from gspo.assembly.queries import OtherSources, curriculum
from gspo.assembly.samplers import evaluator_of, samplers_of, samplings
from gspo.assembly.scorers import check_scale, scorer_of
from gspo.assembly.teacher import check_teacher, longest_reading, teacher_settings
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.process import EngineHost
from gspo.config.algorithm import resolved
from gspo.config.schema import Config, RunConfig
from gspo.config.source_kind import in_environment
from gspo.data.chat_template import Encoder, decoded
from gspo.data.decontamination import Overlap
from gspo.data.prompts import PromptStream, digest, load_demonstrations
from gspo.data.splits import check_columns, read_stages, read_tables, refresh_function
from gspo.distributed.ranks import ProcessRanks
from gspo.interfaces import Learner, Report, RolloutSource, Scorer
from gspo.launch.processes import timed
from gspo.launch.ray_actors import engine_hosts
from gspo.learner.leader_follower import LeadingLearner
from gspo.learner.learner import LocalLearner
from gspo.objective.algorithms import ALGORITHMS
from gspo.rewards.scorer import Rewards
from gspo.rewards.teacher_endpoint import Taught, TeacherEndpoint
from gspo.rollout.asynchronous import AsynchronousSource
from gspo.rollout.dynamic_sampling import DynamicSamplingSource
from gspo.rollout.external import AlreadyScored, ExternalSource
from gspo.rollout.stages import Curriculum
from gspo.rollout.synchronous import SynchronousSource
from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog, recorded
from gspo.runs.machine import warn_if_busy
from gspo.runs.open import claimed, open_run
from gspo.runs.progress import Progress, spinner
from gspo.training import sft
from gspo.training.guard import Guard
from gspo.training.state import Run, restore
from gspo.types import Prompt, Sampling


@contextmanager
def loading(what: str, heard: list[logging.LogRecord]) -> Iterator[None]:
    """Logs that it loads, with a spinner if there is a terminal, and collects gspo's other notes and warnings."""
    with timed(what), recorded(heard.append), spinner(f"loading {what}"):
        yield


@dataclasses.dataclass(frozen=True)
class Start:
    """What every run that trains begins with. It loads its data, its model, its samplers, and at last opens its folder."""

    config: Config
    given: CallInputs
    command: str
    ranks: ProcessRanks | None
    folder: RunFolder | None  # of a run to resume
    last: Path | None  # the checkpoint to resume from
    hosts: Sequence[EngineHost]  # machines on which vLLM starts; empty for this one
    teacher: TeacherEndpoint | None  # behind an endpoint
    odd: Sequence[str]  # warnings about the settings
    heard: list[logging.LogRecord]  # before the folder is open

    def learner(self, prompts: Sequence[Prompt] = ()) -> tuple[HFPolicy, LeadingLearner | LocalLearner]:
        """Loads the model, on all ranks. Returns the policy and its learner. prompts: of training, as far as known."""
        config, ranks = self.config, self.ranks
        with loading("the model" if self.given.holds_model else f"the model {named(config, self.last).path}", self.heard):
            if config.teacher.path:
                outline = outline_of(config, self.given, self.last)
                if self.teacher is None:
                    check_teacher(config, outline, teacher_settings(config))
                else:
                    self.teacher.check(outline.tokenizer, longest_reading(config, prompts))
            if self.command != "sft":
                check_copies(config, ranks.size if ranks else 1)
            kind = "sft" if self.command == "sft" else "train"
            if ranks is not None:  # the followers load their shards while this process does
                ranks.broadcast_command((kind, config, self.last))
            model, frozen = models_of(config, self.given, self.last, ranks)
            policy, local = LEARNERS[kind](config, model, frozen, ranks)
            if self.teacher is not None and self.teacher.context and longest_reading(config, prompts) is None:
                policy.model.most = self.teacher.context - 1  # vLLM adds a token to each request
        return policy, LeadingLearner(local, ranks) if ranks else local

    @contextmanager
    def opened(self, title: str, policy: HFPolicy) -> Iterator[tuple[RunLog, Progress, dict[str, Any] | None]]:
        """Opens the run folder, as `open_run` does, and logs what the run begins with."""
        with open_run(self.config, self.folder, self.last, title, self.command) as (log, screen, state):
            for text in self.odd:
                log.warn(text)
            for record in self.heard:
                log.record(record)
            if self.config.optimizer.lr == "auto":
                log.note(chosen_rate(self.config, policy.model))
            note_limits(log, policy)
            warn_if_busy(policy.device)
            yield log, screen, state


@contextmanager
def started(
    config: Config, resume: bool, given: CallInputs | None, allowed: Collection[str], command: str, odd: Sequence[str] = ()
) -> Iterator[Start]:
    """Joins the ranks, and claims the folder of a run to resume. odd: warnings about the settings."""
    with (
        rank.joined(config.scale) as ranks,
        claimed(config, resume, allowed) as (config, folder, last),
        engine_hosts(config) as hosts,
        nullcontext() if config.teacher.url is None else closing(TeacherEndpoint(config.teacher)) as teacher,
    ):
        check_offload(config)
        if ranks is not None and config.model.device == "cpu" and torch.cuda.is_available():
            raise ValueError('model.device = "cpu": ranks take the GPUs that they see: start with CUDA_VISIBLE_DEVICES=""')
        if "model" in config.reward.functions:  # its template may write the date
            config = on_date(config)
        yield Start(config, given or CallInputs(), command, ranks, folder, last, hosts, teacher, odd, [])


@contextmanager
def training(
    config: Config, resume: bool = False, given: CallInputs | None = None, allowed: Collection[str] = ()
) -> Iterator[tuple[Run, HFModel]]:
    """Yields a run ready for trainer.train, and its model. A new run folder is created last, once all else has loaded."""
    config, odd = resolved(config)
    with started(config, resume, given, allowed, "train", odd) as start, scorer_of(start.config, start.given) as scorer:
        check_scale(start.config, scorer)
        with loading("the prompts", start.heard):  # first: errors here surface before anything is downloaded
            start, prompts, held_out, queries = load_queries(start, scorer)
        config = cast(RunConfig, start.config)

        def source(sampler: Any, sampling: Sampling, report: Report) -> RolloutSource:
            rollout, scores = config.rollout, scorer if start.teacher is None else Taught(scorer, start.teacher)
            if rollout.dynamic_sampling_rounds:
                return DynamicSamplingSource(queries, sampler, scores, rollout, sampling, report, algorithm=config.algorithm)
            if rollout.max_staleness:
                return AsynchronousSource(queries, sampler, scores, rollout, sampling, report, config.train.steps)
            return SynchronousSource(queries, sampler, scores, rollout, sampling, report)

        with assembled(start, source, scorer, prompts, held_out) as (run, model):
            run.log.note(f"{len(prompts)} training prompts, {counted(len(held_out), config.eval.every > 0)}")
            if len(prompts) < (asked := config.rollout.num_prompts):
                run.log.warn(f"rollout.num_prompts = {asked}: there are fewer prompts, so a step has some several times")
            if run.step == 0 and not in_environment(config.task):  # an environment writes the prompt itself
                run.log.prompt(run.decode(prompts[0].tokens), len(prompts[0].tokens))
            yield run, model


def load_queries(start: Start, scorer: Rewards | AlreadyScored) -> tuple[Start, list[Prompt], list[Prompt], Curriculum]:
    """The start with a date if prompts need one, training and held-out prompts, and the curriculum of all sources."""
    config, given, last = start.config, start.given, start.last
    check_here(config, given, last)
    tables = read_tables(config.task, config.eval, given.rows, given.eval_rows)
    check_columns(tables, config.task, scorer.needs)
    stages = read_stages(config.task, config.stage, scorer.needs)
    if config.refresh.every and config.refresh.source is not None:
        refresh_function(config.refresh.source, config.refresh.every)
    overlap = Overlap(config.task, tables)
    outline = trained_outline(config, given, last)
    config = dated(config, outline.tokenizer)
    prompts, held_out = prompts_of(config, given, outline, tables, overlap)
    scorer.check([*prompts, *held_out])
    others = OtherSources(config, outline, overlap, held_out, scorer.check, stages)
    queries = curriculum(config, prompts, others)
    scorer.wait()
    return dataclasses.replace(start, config=config), prompts, held_out, queries


@contextmanager
def serving(
    config: Config, resume: bool = False, given: CallInputs | None = None, allowed: Collection[str] = ()
) -> Iterator[tuple[Run, ExternalSource, HFModel]]:
    """Yields a run that trains on rollouts of external agents, the source that receives them, and its model."""
    config, odd = resolved(config, samples=False)
    sources: list[ExternalSource] = []

    def source(sampler: Any, sampling: Sampling, report: Report) -> ExternalSource:
        sources.append(ExternalSource(sampler, sampling, None if start.teacher is None else start.teacher.read))
        return sources[0]

    with started(config, resume, given, allowed, "serve", odd) as start:
        with recorded(start.heard.append):
            check_chats(start)
        with assembled(start, source, AlreadyScored()) as (run, model):
            yield run, sources[0], model


def check_chats(start: Start) -> None:
    """Raises ValueError for settings of served chats that the tokenizer rules out, before the model is loaded."""
    config, tokenizer = start.config, trained_outline(start.config, start.given, start.last).tokenizer
    Encoder(tokenizer, dated(config, tokenizer).task)
    check_stops(config, tokenizer)


@contextmanager
def assembled(
    start: Start,
    source: Callable[[Any, Sampling, Report], RolloutSource],
    scorer: Scorer,
    prompts: Sequence[Prompt] = (),
    held_out: Sequence[Prompt] = (),
) -> Iterator[tuple[Run, HFModel]]:
    """Loads the model, and yields a run with samplers and folder, restored from the last checkpoint if there is one."""
    policy, learner = start.learner(prompts)
    model = policy.model
    start = dataclasses.replace(start, config=(config := cast(RunConfig, dated(start.config, model.tokenizer))))
    with recorded(start.heard.append):
        sampling, eval_sampling = samplings(config, model)
    sampling = dataclasses.replace(sampling, routes=policy.sparse)
    with (
        samplers_of(config, policy, learner.publish(0), Path(config.log.dir), start.hosts) as (sampler, evaluator),
        start.opened(f"{config.algorithm.name} training", policy) as (log, screen, state),
    ):
        run = Run(
            config=config, row=ALGORITHMS[config.algorithm.name], learner=cast(Learner, learner),
            guard=Guard(config.guard, config.algorithm.epsilon != "auto"),
            source=source(sampler, sampling, screen.phase), sampler=sampler, sampling=sampling, scorer=scorer,
            held_out=held_out, evaluator=evaluator, eval_sampling=eval_sampling, data=digest([*prompts, *held_out]),
            log=log, screen=screen, decode=partial(decoded, model.tokenizer),
        )  # fmt: skip
        if state is not None:
            restore(run, state)
        check_fit(config, [*prompts, *held_out], model.context_length)
        if isinstance(learner, LeadingLearner):
            tokens = longest_read(config, [len(prompt.tokens) for prompt in prompts], log.step + 1)
            learner.fit(min(tokens, model.context_length or tokens), model.config.vocab_size)
        leave_folder(config, model)
        yield run, model


@contextmanager
def imitating(
    config: Config, resume: bool = False, given: CallInputs | None = None, allowed: Collection[str] = ()
) -> Iterator[tuple[sft.SupervisedRun, HFModel]]:
    """Yields a supervised run ready for sft.fit, and its model."""
    with started(config, resume, given, allowed, "sft") as start:
        with loading("the rows", start.heard):
            outline = trained_outline(config, start.given, start.last)
            start = dataclasses.replace(start, config=(config := dated(start.config, outline.tokenizer)))
            encoder = Encoder(outline.tokenizer, config.task)
            # Rows that `gspo train` would hold out of the same source are held out here too.
            tables = read_tables(config.task, dataclasses.replace(config.eval, every=0), start.given.rows)
            rows, left = load_demonstrations(config.task, tables, encoder, outline.context_length)
        policy, learner = start.learner()
        completions = [sft.imitated(row.tokens, row.completion) for row in rows]
        with start.opened("supervised fine-tuning", policy) as (log, screen, state):
            stream = PromptStream(completions, config.task.seed)
            run = sft.SupervisedRun(
                config=config, rows=stream, learner=learner, log=log, screen=screen, data=digest(rows)
            )  # fmt: skip
            if state is not None:
                sft.restore(run, state)
            if isinstance(learner, LeadingLearner):
                longest = max(len(completion.tokens) for completion in completions)
                learner.fit(longest, policy.model.config.vocab_size)
            log.note(f"{len(rows)} rows to imitate, {counted(len(left), False)}")
            if state is None:
                first = rows[0].tokens
                log.prompt(decoded(policy.model.tokenizer, first), len(first))
            leave_folder(config, policy.model)
            yield run, policy.model


def counted(held_out: int, evaluated: bool) -> str:
    """How many prompts are held out, in words. evaluated: whether this run itself evaluates on them."""
    if not held_out:
        return "none held out"
    return f"{held_out} held out" + ("" if evaluated else " for `gspo eval` (eval.num_prompts = 0 holds out none)")


def chosen_rate(config: Config, model: HFModel) -> str:
    """What `optimizer.lr = "auto"` is in this run, in words."""
    count = size(model)
    many = f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
    whose = "adapters on a model" if config.lora.rank else "a model"
    return f'optimizer.lr = "auto" is {learning_rate(config, model):g} in this run: for {whose} of {many} parameters'


def note_limits(log: RunLog, policy: HFPolicy) -> None:
    """Logs what this run has to do without: routing metrics, shared prompts, full precision."""
    if policy.unseen:
        log.warn(f"{policy.unseen}: there are no moe/ metrics, and a change of routing is not noticed")
    if policy.unshared:
        log.event("info", f"trains on padded rows: {policy.unshared}")
    trained = next((p.dtype for p in policy.model.model.parameters() if p.requires_grad), torch.float32)
    if trained != torch.float32:
        log.warn(
            f"the weights and AdamW's moments are in {trained}, where changes smaller than about 1/256 are lost: small "
            "updates, and with beta2 = 0.999 each decrease of the second moment, so steps stay small once gradients shrink; "
            'model.dtype = "float32" keeps both (matrix products still run in bfloat16 on a GPU)'
        )


@contextmanager
def evaluating(config: Config, given: CallInputs | None = None) -> Iterator[dict[str, Any]]:
    """Yields the arguments of evaluation.evaluate for the given model and prompts, or those that `config` names."""
    given, heard = given or CallInputs(), list[logging.LogRecord]()
    if given.rows is None and not config.eval.num_prompts:
        raise ValueError("eval.num_prompts = 0: nothing is held out to evaluate on; raise it")
    if not config.reward.functions and not given.functions:
        raise ValueError("reward.functions = []: nothing tells a right completion from a wrong one; name a reward")
    config = of_its_day(config)
    with scorer_of(config, given) as scorer:
        with loading("the prompts", heard):
            config = dated(config, (outline := outline_of(config, given, None)).tokenizer)
            held_out = evaluated_prompts(config, given, outline)
            if not held_out:
                remedy = "give held-out prompts as task.eval_source or task.eval_split"
                raise ValueError(f"task.source = {config.task.source!r}: too few rows to hold out a tenth of them: {remedy}")
            scorer.check(held_out)
            scorer.wait()
        with loading("the model" if given.holds_model else f"the model {config.model.path}", heard):
            model = loaded_model(config, given)
        policy = HFPolicy(model, config.rollout.temperature)
        with evaluator_of(config, policy) as sampler, Progress(0, title="evaluation") as screen:
            yield {
                "sampler": sampler, "sampling": samplings(config, model)[1], "scorer": scorer, "report": screen.phase,
                "prompts": held_out, "n": config.eval.num_generations,
                "correct_threshold": config.reward.correct_threshold,
            }  # fmt: skip
