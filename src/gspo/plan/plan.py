"""`gspo plan`: the predicted memory and traffic of a run, and its seconds on this CPU. No weights are read."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gspo.assembly import host_memory
from gspo.assembly.host_memory import BFLOAT16, GIB
from gspo.assembly.models import room
from gspo.backends.hf.model import DTYPES
from gspo.config.algorithm import resolved
from gspo.config.checks import check_required
from gspo.config.conflicts import LEARN, check_conflicts
from gspo.config.schema import Config, RunConfig
from gspo.config.stages import longest, rollout_at
from gspo.distributed.environment import check_division, check_several
from gspo.objective.algorithms import ALGORITHMS
from gspo.plan import cost_model, this_cpu
from gspo.plan.activation_memory import CPU
from gspo.plan.cost_model import Sent, Spread, Work
from gspo.plan.memory import Memory, MicroBatch, decoded_rows, memory_of, narrowed
from gspo.plan.meta_sharding import ShardedLayout, shard_on_meta
from gspo.plan.work import Lengths, outline_of, work_of

GB = 1e9
LARGEST = 4096  # ranks: torch takes half a minute for the mesh of these, and four times as long for twice as many
WIDE = 48  # width of the column of row names


@dataclass(frozen=True)
class Prediction:
    """The plan of a run. All figures are predictions; `memory` is that of the fullest rank, the leader."""

    sharding: ShardedLayout
    spread: Spread
    work: Work
    memory: Memory
    sent: list[Sent]
    part: MicroBatch
    step: this_cpu.StepTime | None = None  # on this CPU


def plan(config: Config, lengths: Lengths) -> Prediction:
    """The plan of a reinforcement learning run. Raises ValueError for settings with which no run could start."""
    config = checked(config)
    spread = Spread(config.scale.ranks or 1, config.scale.expert_parallel, config.scale.data_parallel_replicas)
    sharding = shard_on_meta(config.model, spread)
    work, part = work_of(config, spread.ranks, lengths)
    itemsize = host_memory.itemsize(config)
    checkpointing = config.train.gradient_checkpointing
    sent = cost_model.sent(sharding.layers, sharding.shape, spread, work, itemsize, checkpointing)
    if config.sampler.engine == "vllm" and spread.shards > 1:
        published_size = itemsize if config.model.autocast == "none" else BFLOAT16
        sent.append(cost_model.published(sharding.weights, spread, published_size))
    length = lengths.prompt + lengths.longest(config)
    evaluated = lengths.prompt + lengths.evaluated(config) if config.eval.every else 0
    memory = memory_of(config, sharding, spread, part, lengths.prompt, length, evaluated)
    return Prediction(sharding, spread, work, memory, sent, part)


def plan_here(config: Config, lengths: Lengths) -> Prediction:
    """`plan` for the CPU of this machine, with the memory of the process and the seconds of a step."""
    process = this_cpu.process_bytes()
    made = plan(config, lengths)
    standing = made.memory.standing | {"Python and its libraries": process}
    products = torch.bfloat16 if narrowed(config) else DTYPES[config.model.dtype]
    vocabulary = made.sharding.embedded // made.sharding.shape.hidden
    model = this_cpu.Model(made.sharding.weights, made.sharding.shape, vocabulary, products, bool(config.lora.rank))
    completion = lengths.longest(config)
    step = this_cpu.step_of(config, model, made.work, made.part, lengths.prompt, completion)
    memory = dataclasses.replace(made.memory, standing=standing, disjoint=0.0)  # C's allocator keeps what is freed
    return dataclasses.replace(made, memory=memory, step=step)


def checked(config: Config) -> RunConfig:
    """The resolved settings. Raises ValueError for those that the plan does not cover."""
    check_required(config, "model.path")
    check_conflicts(config, LEARN)
    config, ranks = resolved(config)[0], config.scale.ranks or 1
    if ranks > LARGEST:
        raise ValueError(f"scale.ranks = {ranks}: `gspo plan` lays out at most {LARGEST} ranks: lower it")
    check_division(config.scale, ranks)
    if ranks > 1:
        check_several(config)
    if config.model.quantize != "none" and not config.lora.rank:
        why = "weights of few bits stay as they are: train adapters on them (lora.rank), or leave it out"
        raise ValueError(f'model.quantize = "{config.model.quantize}": {why}')
    if ALGORITHMS[config.algorithm.name].critic:
        raise ValueError(f"algorithm.name = {config.algorithm.name!r}: `gspo plan` counts no critic: choose another one")
    return config


def largest(config: Config, lengths: Lengths) -> Config:
    """`config` with the rollout settings of the stage that samples most in a step."""
    if not config.stage:
        return config
    room(config, outline_of(config).context_length)
    evaluated = config.eval.max_completion_length or longest(config.rollout, config.stage)[1]
    config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, max_completion_length=evaluated))
    steps = 1, *(stage.at for stage in config.stage)
    each = [dataclasses.replace(config, rollout=rollout_at(config.rollout, config.stage, step)) for step in steps]
    return max(each, key=lambda one: one.rollout.num_generations * lengths.longest(one))


def describe(plan: Prediction, config: Config, lengths: Lengths, memory: float | None) -> Iterator[str]:
    """Yields the lines of `gspo plan`. `memory` is that of a rank, in GiB."""
    sharding, spread, held = plan.sharding, plan.spread, plan.memory
    timed = "only some matrix products were timed on this CPU" if plan.step else "none is measured"
    yield f"All figures are predicted, {timed}. Nothing was started and no weights were read."
    size = sum(weight.size for weight in sharding.weights)
    packed = "" if config.model.quantize == "none" else f", packed as {config.model.quantize}"
    held_as = f"{size / 1e9:.2f} billion weights in {config.model.dtype}{packed}"
    yield f"model      {config.model.path} ({sharding.name}): {held_as}"
    yield (
        f"ranks      {spread.ranks}: scale.data_parallel_replicas = {spread.replicas}, each on {spread.shards}; "
        f"scale.expert_parallel = {spread.experts}"
    )
    yield ""
    yield "memory of the fullest rank, predicted, in GiB"
    for name, size in held.standing.items():
        yield row(name, size / GIB)
    yield row("= state", held.state / GIB)
    for name, amount in held.passing.items():
        yield row(name, amount / GIB)
    if held.disjoint:
        yield row("not at the same time as the rest", -held.disjoint / GIB)
    yield row("together", held.together / GIB)
    yield from uneven_shards(plan)
    yield from sampler_rows(plan, config)
    if held.read:
        yield f"  The host reads {held.read / GIB:.2f} GiB of {config.model.dtype} weights before it packs them."
    if memory is not None:
        yield from verdict(plan, config, memory)
    yield ""
    if plan.sent:
        yield from sent_table(plan)
    if plan.step:
        yield from step_table(plan.step, config.sampler.engine == "embedded")
    yield from assumptions(plan, config, lengths)


def sent_table(plan: Prediction) -> Iterator[str]:
    """The table of bytes that a rank sends."""
    yield f"{'sent by a rank, predicted, in GB':<{WIDE}}{'a micro-batch':>14}{'a step':>12}"
    for kind in plan.sent:
        once = f"{kind.training / GB:14.3f}" if kind.training else " " * 14
        yield f"{'  ' + kind.what:<{WIDE}}{once}{kind.total(plan.work) / GB:12.2f}"
    yield row("together", sum(kind.total(plan.work) for kind in plan.sent) / GB, 26)
    yield ""


def step_table(step: this_cpu.StepTime, samples: bool) -> Iterator[str]:
    """The table of seconds on this CPU, and what they rest on. samples: whether the trainer itself samples."""
    threads, found, load = torch.get_num_threads(), step.rates, os.getloadavg()[0]
    yield f"a step on this CPU, predicted, in seconds ({threads} of {os.cpu_count()} cores)"
    if samples:
        yield row("sampling", step.sampling)
    yield row("training", step.training)
    if samples:
        yield row("together", step.sampling + step.training)
    yield (
        f"  Products of the model's shapes, timed just now, in GFLOP/s: {found.body / GB:.0f} and in the head "
        f"{found.head / GB:.0f}, decoding {found.decoding_body / GB:.0f} and {found.decoding_head / GB:.0f}."
    )
    yield (
        f"  A step is assumed to reach {this_cpu.EFFICIENCY:.0%} of that on a quiet machine. All completions count as "
        "trained on; rewards and evaluations come on top."
    )
    if load > (os.cpu_count() or 1) / 2:
        yield f"  This machine is busy (load average {load:.1f}), which makes these figures larger."
    yield ""


def row(name: str, amount: float, width: int = 12) -> str:
    """A table row: a name and its figure."""
    return f"{'  ' + name:<{WIDE}}{amount:{width}.2f}"


def sampler_rows(plan: Prediction, config: Config) -> Iterator[str]:
    """What the leader needs on top if it samples itself (embedded sampler)."""
    if not plan.memory.sampling:
        return
    if host_memory.copies(config, plan.spread.ranks):
        yield row(f"{host_memory.COPY}, to sample with", plan.memory.copied / GIB)
    yield row("sampling (estimate), in turn with passes", plan.memory.sampling / GIB)
    yield row("at its fullest (the rank that samples)", plan.memory.fullest / GIB)
    if plan.spread.ranks > 1:
        yield f'  sampler.engine = "embedded" samples on one rank, the leader, with {host_memory.COPY}.'


def uneven_shards(plan: Prediction) -> Iterator[str]:
    """The remedy if shards are uneven."""
    factor = cost_model.unevenness(plan.sharding.weights, plan.spread)
    if factor <= cost_model.EVEN:
        return
    yield (
        f"  Shards are uneven: the fullest rank holds {factor:.2f} times the mean. {plan.spread.shards} ranks do not divide "
        "the rows of weights evenly (an expert is one row): try a larger scale.data_parallel_replicas."
    )


def verdict(plan: Prediction, config: Config, memory: float) -> Iterator[str]:
    """Whether the run fits `memory` GiB per rank, and the remedy if not."""
    held, room = plan.memory, memory * GIB
    fits = held.state <= room
    if held.fullest <= room:
        yield f"  This fits {memory:g} GiB, as far as can be predicted."
    elif fits and held.state + held.copied > room:
        whose = "that the embedded sampler keeps on the leader"
        yield f"  The shards fit {memory:g} GiB, BUT NOT WITH THE WHOLE MODEL {whose}: {host_memory.REMEDY}."
    elif fits and held.together + held.copied <= room:
        less = f"lower sampler.batch_size, or {host_memory.REMEDY}"
        yield f"  Shards and passes fit {memory:g} GiB, sampling does not: {less}."
    elif fits:
        yield f"  The state fits {memory:g} GiB, but not what a pass takes on top: {', or '.join(remedies(config))}."
    elif config.lora.rank:
        packs = 'set model.quantize = "nf4", or ' if config.model.quantize == "none" else ""
        yield f"  STATE ALONE DOES NOT FIT {memory:g} GiB: {packs}take a smaller model: adapters are trained on one device."
    else:
        least = cost_model.smallest(plan.sharding.weights, plan.spread, held.state / plan.sharding.held, room)
        remedy = "no number of ranks would do" if least is None else f"the smallest number of ranks that holds it is {least}"
        alone = "; or train adapters (lora.rank)" if plan.spread.ranks == 1 else ""
        yield (
            f"  STATE ALONE DOES NOT FIT {memory:g} GiB: {remedy}, with scale.expert_parallel = {plan.spread.experts} and "
            f"scale.data_parallel_replicas = {plan.spread.replicas}{alone}."
        )


def remedies(config: Config) -> Iterator[str]:
    """Ways to make a pass smaller that the settings do not use yet."""
    if not config.train.gradient_checkpointing:
        yield "set train.gradient_checkpointing = true"
    yield "lower train.micro_batch_tokens"
    if not config.lora.rank:
        yield "take more ranks (scale.ranks), or train adapters (lora.rank)"
    elif config.model.quantize == "none":
        yield 'set model.quantize = "nf4"'


def assumptions(plan: Prediction, config: Config, lengths: Lengths) -> Iterator[str]:
    """The assumptions behind the figures, with the options that change them."""
    rollout, work = config.rollout, plan.work
    length, turns = lengths.longest(config), ""
    if length > (lengths.completion or rollout.max_completion_length):
        turns = f" in up to {config.task.max_turns} turns, without what the environment answers"
    yield "assumed"
    yield (
        f"  {rollout.num_prompts} prompts of {lengths.prompt} tokens (option prompt-tokens), {rollout.num_generations} "
        f"completions each, all of {length}{turns} (option completion-tokens)"
    )
    yield (
        f"  the fullest rank: {work.training} training micro-batches a step with {work.training_tokens} tokens, "
        f"{work.reading} that are only read"
    )
    if config.eval.every and plan.memory.sampling:
        rows = decoded_rows(config, config.eval)
        yield f"  evaluations: {rows} completions at once, all of {lengths.evaluated(config)} (option completion-tokens)"
    if config.teacher.local:
        yield "  the pass of the teacher is counted as one of the model itself"
    if config.stage:
        yield f"  {len(config.stage)} [[stage]]: these are the figures of the one that samples most in a step"
    if any(weight.narrow for layer in plan.sharding.layers for weight in layer.weights):
        yield "  on GPUs: weights whose products are in bfloat16 are gathered in it, gradients are added up in float32"
    if config.algorithm.old_logprobs == "auto":
        yield '  algorithm.old_logprobs = "auto" comes out as "sampler": the engine computes as the trainer does'
    if plan.step:
        yield '  this CPU, with the memory that is free now (option memory, or model.device = "cuda", plans for a GPU)'
    if plan.spread.ranks > 1:
        yield "  experts are chosen equally often; rings among n ranks send n - 1 of n parts"
    elif config.model.device == "auto":
        yield '  a GPU (set model.device = "cpu" for none)'


def render(config: Config, lengths: Lengths, memory: float | None) -> tuple[str, bool]:
    """The text of `gspo plan`, and whether state and copies fit `memory` GiB per rank (True if `memory` is None)."""
    config = largest(config, lengths)
    if this_cpu.for_this_cpu(config, memory):
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, device="cpu"))
        made, free = plan_here(config, lengths), host_memory.free(CPU) / GIB
        memory = memory or (round(free, 1) if free < math.inf else None)
    else:
        made = plan(config, lengths)
    text = "\n".join(line.rstrip() for line in describe(made, config, lengths, memory))
    return text, memory is None or made.memory.state + made.memory.copied <= memory * GIB
