"""Predicted memory of a rank, by purpose: throughout the run, in a pass, and while sampling."""

from __future__ import annotations

from dataclasses import dataclass

from gspo.assembly import host_memory
from gspo.assembly.host_memory import BFLOAT16, FLOAT32, MOMENTS
from gspo.backends.hf.head import footprint
from gspo.backends.hf.load import autocast_type
from gspo.backends.hf.model import DTYPES
from gspo.backends.hf.sampler import PREFILL_TOKENS
from gspo.config.rollout import RolloutConfig
from gspo.config.schema import Config
from gspo.config.training import EvalConfig
from gspo.plan import cost_model
from gspo.plan.activation_memory import ActivationMemory, device_type, measure
from gspo.plan.cost_model import Shape, Spread
from gspo.plan.meta_sharding import ShardedLayout

GRADIENTS, ACTIVATIONS, LOGITS, LAYER = "gradients", "activations", "logits", "activations of a layer that is recomputed"
COPIES = "copies of weights for products"
SMALL, SCALED = 4096, 256  # bitsandbytes keeps moments of smaller weights in float32; numbers that share a scale


@dataclass(frozen=True)
class MicroBatch:
    """The largest micro-batch of a rank: its tokens, how many of them were sampled, and micro-batches per update."""

    tokens: int
    sampled: int
    count: int


@dataclass(frozen=True)
class Memory:
    """Memory of a rank, in bytes."""

    standing: dict[str, int]  # throughout the run, by purpose; only gradients are freed while sampling
    passing: dict[str, float]  # during a pass on top, by purpose
    copied: int  # the embedded sampler's copies of the model
    sampling: float  # while sampling on top
    disjoint: float = 0.0  # of `standing` and `passing`, what never exists at the same time as the rest
    read: int = 0  # host memory to read weights that are then packed

    @property
    def state(self) -> int:
        """Standing memory, gradients included."""
        return sum(self.standing.values())

    @property
    def together(self) -> float:
        """Peak during a pass, without copies of the model."""
        return self.state + sum(self.passing.values()) - self.disjoint

    @property
    def fullest(self) -> float:
        """Peak over passes and sampling, copies of the model included."""
        return self.copied + max(self.together, self.state - self.standing.get(GRADIENTS, 0) + self.sampling)


def memory_of(
    config: Config, sharding: ShardedLayout, spread: Spread, part: MicroBatch, prompt: int, length: int, evaluated: int
) -> Memory:
    """Memory of the fullest rank. `length` counts the tokens of a prompt with its completion, `evaluated` those in an
    evaluation, 0 for none.
    """
    itemsize = host_memory.itemsize(config)
    copied = host_memory.copies(config, spread.ranks) * sum(weight.size for weight in sharding.weights) * itemsize
    of = ((config.rollout, length), (config.eval, evaluated)) if evaluated else ((config.rollout, length),)
    sampling = max(sampling_bytes(config, sharding, batch, prompt, each, itemsize) for batch, each in of)
    if spread.ranks > 1:
        each = host_memory.standing_bytes(config)
        standing = {name: sharding.held * size for name, size in each.items()}
        if teacher := host_memory.teacher_bytes(config) * config.scale.data_parallel_replicas // spread.ranks:
            standing["teacher"] = teacher
        return Memory(standing, in_shards(config, sharding, spread, part.tokens, itemsize), copied, sampling)
    model, activations = measure(config.model, config.lora, length)
    gradients = model.width * sum(model.trained)
    offloads = config.train.offload_optimizer
    second = config.algorithm.beta and not (config.lora.rank or config.train.offload_reference)
    standing = {
        "weights": model.weights,
        GRADIENTS: gradients,
        "AdamW's moments": 0 if offloads else moments(model.trained, model.width, config.optimizer.name == "adamw_8bit"),
        "reference model": model.weights if second else 0,
        "teacher": host_memory.teacher_bytes(config),
    }
    passing = unsharded(config, sharding, activations, part, itemsize) | {
        "a packed weight made whole": float(model.unpacked)
    }
    return Memory(
        {name: size for name, size in standing.items() if size},
        {name: size for name, size in passing.items() if size},
        copied,
        sampling,
        disjoint(passing, gradients, part, config.train.gradient_checkpointing),
        sharding.held * itemsize if config.model.quantize != "none" else 0,
    )


def moments(trained: tuple[int, ...], width: int, bits8: bool) -> int:
    """Bytes of AdamW's moments. `bits8`: bitsandbytes' 8-bit moments, one byte each and a scale per 256 of them."""
    if not bits8:
        return MOMENTS * width * sum(trained)
    return MOMENTS * sum(n * FLOAT32 if n < SMALL else n + FLOAT32 * -(-n // SCALED) for n in trained)


def unsharded(
    config: Config, sharding: ShardedLayout, activations: ActivationMemory | None, part: MicroBatch, itemsize: int
) -> dict[str, float]:
    """Bytes of a pass through an unsharded model, by purpose. `activations` comes from `measure`; None if that failed."""
    shape, tokens = sharding.shape, part.tokens
    vocabulary, frozen = sharding.embedded // shape.hidden, bool(config.lora.rank)
    logits = footprint(part.sampled, vocabulary, shape.hidden, frozen, narrow=itemsize < FLOAT32)
    if activations is None:
        rows = in_shards(config, sharding, Spread(1), tokens, itemsize)
    elif config.train.gradient_checkpointing:
        rows = {
            # Autocast caches those of trained weights until a pass ends.
            COPIES: 0.0 if config.lora.rank else activations.fixed,
            ACTIVATIONS: float(tokens * shape.layers * shape.hidden * itemsize),
            LAYER: tokens * (activations.layer + layer_gradients(shape, BFLOAT16 if narrowed(config) else itemsize))
            + activations.fixed_layer,
        }
    else:
        rows = {COPIES: activations.fixed, ACTIVATIONS: tokens * activations.each}
    return rows | {LOGITS: float(logits)}


def layer_gradients(shape: Shape, itemsize: int) -> int:
    """Estimated bytes of a token's gradients within a layer: two of the widest activation and two hidden states."""
    return 2 * itemsize * (max(shape.width, shape.taken * shape.expert_width) + shape.hidden)


def disjoint(passing: dict[str, float], gradients: int, part: MicroBatch, checkpointing: bool) -> float:
    """Bytes of gradients and `passing` that never exist at the same time as the rest.

    With checkpointing, autocast's copies are freed before the logits are made, and the logits before a layer is recomputed.
    If an update is a single micro-batch, its gradients appear while everything else is freed.
    """
    every, single = sum(passing.values()), part.count == 1
    if not checkpointing:
        return min(every, float(gradients)) if single else 0.0
    copies, logits, layer = (passing.get(name, 0.0) for name in (COPIES, LOGITS, LAYER))
    turns = copies + logits + layer
    if single:
        return every + gradients - max(every - turns + max(copies, logits), gradients + layer)
    return turns - max(copies, logits, layer)


def narrowed(config: Config) -> bool:
    """Whether matrix products run in bfloat16 while the weights do not."""
    model = config.model
    return autocast_type(model.autocast, device_type(model), DTYPES[model.dtype]) is not None


def in_shards(config: Config, sharding: ShardedLayout, spread: Spread, tokens: int, itemsize: int) -> dict[str, float]:
    """Bytes of a pass with gathered weights, by purpose, by formula."""
    checkpointing = config.train.gradient_checkpointing
    rows: dict[str, float] = {}
    if spread.shards > 1:
        rows["gathered layers"] = cost_model.gathered(sharding.layers, spread, itemsize)
    if narrowed(config) and not checkpointing:
        layers = [layer for layer in sharding.layers if spread.ranks == 1 or not layer.kept]  # kept: norms, the head
        every = (weight for layer in layers for weight in layer.weights if not weight.narrow)
        if copies := cost_model.cast(every, sharding.embedded, experts=spread.experts == 1):
            rows["bfloat16 copies of weights"] = BFLOAT16 * copies
    rows[f"{ACTIVATIONS} (estimate)"] = cost_model.activations(sharding.shape, tokens, itemsize, checkpointing)
    return rows


def decoded_rows(config: Config, batch: RolloutConfig | EvalConfig) -> int:
    """Completions of a step or of an evaluation that the embedded sampler decodes at once."""
    return min(config.sampler.batch_size, batch.num_prompts * batch.num_generations)


def sampling_bytes(
    config: Config, sharding: ShardedLayout, batch: RolloutConfig | EvalConfig, prompt: int, length: int, itemsize: int
) -> float:
    """Bytes of the embedded sampler for a batch of completions of `length` tokens, prompt included; 0 with vLLM."""
    if config.sampler.engine != "embedded":
        return 0.0
    narrow, rows = narrowed(config), decoded_rows(config, batch)
    read = min(PREFILL_TOKENS, -(-rows // batch.num_generations) * prompt)
    vocabulary = sharding.embedded // sharding.shape.hidden
    kept = narrow and config.model.quantize == "none"  # only experts': in inference mode autocast caches no copies
    cast = sum(weight.size for weight in sharding.weights if weight.experts) if kept else 0
    taken = cost_model.sampling(sharding.shape, vocabulary, rows, length, read, BFLOAT16 if narrow else itemsize)
    return BFLOAT16 * cast + taken
