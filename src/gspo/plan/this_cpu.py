"""A plan for the CPU of this machine: what the process itself takes, and the seconds of a step, from the rate of a few
matrix products of the model's shapes, which are timed here.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from gspo.backends.hf.head import KEPT
from gspo.config.import_function import pick_device
from gspo.config.schema import Config
from gspo.plan.cost_model import Shape, Weight, Work
from gspo.plan.memory import MicroBatch, decoded_rows

EFFICIENCY = 0.6  # share of the rate of their products that sampling and training are assumed to reach
POOL = 1 << 25  # numbers that are read in turn, so that weights come from memory as they do in a pass
LARGEST = 2e9  # operations of a product that is timed; larger ones are cut
ROWS = 512  # rows above which a product gets no faster
SECONDS = 0.04  # for each shape


@dataclass(frozen=True)
class Product:
    """`count` matrix products of `rows` rows with weights [outputs, inputs]."""

    rows: int
    outputs: int
    inputs: int
    count: float = 1.0

    @property
    def operations(self) -> float:
        """Floating-point operations of all of them."""
        return 2.0 * self.count * self.rows * self.outputs * self.inputs


@dataclass(frozen=True)
class Rates:
    """Floating-point operations per second in products of the body and of the head, in a pass and in decoding."""

    body: float
    head: float
    decoding_body: float
    decoding_head: float


@dataclass(frozen=True)
class Model:
    """What the operations of a model follow from: its weights once each, its dimensions, its vocabulary, and the dtype of
    its products (the head's are in float32). frozen: only adapters are trained.
    """

    weights: Sequence[Weight]
    shape: Shape
    vocabulary: int
    dtype: torch.dtype = torch.float32
    frozen: bool = False

    def body(self, rows: int) -> list[Product]:
        """The products of `rows` tokens with the body's weights. Each expert gets the same share of the tokens."""
        hidden, embedded, found = self.shape.hidden, self.shape.hidden * self.vocabulary, []
        for weight, count in Counter(self.weights).items():
            if weight.row == 1 or weight.size == embedded:
                continue
            if weight.experts:
                each = max(1, round(rows * self.shape.taken / weight.rows))
                used = min(weight.rows, rows * self.shape.taken)
                found.append(Product(each, weight.row // hidden, hidden, count * used))
            else:
                found.append(Product(rows, weight.rows, weight.row, count))
        return found

    def head(self, rows: int) -> Product:
        """The product of `rows` hidden states with the head."""
        return Product(rows, self.vocabulary, self.shape.hidden)

    def attention(self, tokens: float, context: float) -> float:
        """Operations of `tokens` tokens that attend to `context` others each."""
        return 4.0 * self.shape.layers * self.shape.queries * tokens * context

    def operations(self, tokens: int, context: float) -> float:
        """Operations of the body with `tokens` tokens that attend to `context` others each."""
        products = sum(one.operations for one in self.body(tokens)) if tokens else 0.0
        return products + self.attention(tokens, context)


@dataclass(frozen=True)
class StepTime:
    """Predicted seconds of a step, by purpose, and the rates that they rest on."""

    sampling: float
    training: float
    rates: Rates


def for_this_cpu(config: Config, memory: float | None) -> bool:
    """Whether a plan is for this CPU: model.device is cpu, or auto without a GPU here or the `memory` of another."""
    if (config.scale.ranks or 1) > 1:
        return False
    device = config.model.device
    return device == "cpu" or (device == "auto" and memory is None and pick_device(device).type == "cpu")


def process_bytes() -> int:
    """Memory of this process, which has imported what a run imports; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def step_of(config: Config, model: Model, work: Work, part: MicroBatch, prompt: int, completion: int) -> StepTime:
    """The seconds of a step with prompts and completions of so many tokens."""
    found = rates(model, part, decoded_rows(config, config.rollout))
    training = training_seconds(model, work, part.sampled, prompt + completion, found, config.train.gradient_checkpointing)
    return StepTime(sampling_seconds(model, config, prompt, completion, found), training, found)


def rates(model: Model, part: MicroBatch, rows: int) -> Rates:
    """Times the products of a micro-batch, and of decoding `rows` rows: within a second or so."""
    pool = torch.full((POOL,), 1e-3)
    cast = pool.to(model.dtype)
    return Rates(
        rate(model.body(part.tokens), cast), rate([model.head(part.sampled)], pool),
        rate(model.body(rows), cast), rate([model.head(rows)], pool),
    )  # fmt: skip


@torch.inference_mode()
def rate(products: Sequence[Product], pool: torch.Tensor) -> float:
    """Floating-point operations per second of these products together, with weights from the pool."""
    return sum(one.operations for one in products) / sum(one.operations * _seconds_each(one, pool) for one in products)


def _seconds_each(product: Product, pool: torch.Tensor) -> float:
    """Seconds of an operation of the product, by the fastest of several: what else the machine does is left out."""
    rows, inputs = min(product.rows, ROWS), min(product.inputs, POOL)
    outputs = max(1, min(product.outputs, int(LARGEST / (2 * rows * inputs)), POOL // inputs))
    size, at, fastest = outputs * inputs, 0, math.inf
    x = torch.full((rows, inputs), 1e-3, dtype=pool.dtype)
    end = time.perf_counter() + SECONDS
    while (begin := time.perf_counter()) < end or math.isinf(fastest):
        F.linear(x, pool[at : at + size].view(outputs, inputs))
        fastest = min(fastest, time.perf_counter() - begin)
        at = at + size if at + 2 * size <= POOL else 0
    return fastest / (2.0 * rows * size)


def sampling_seconds(model: Model, config: Config, prompt: int, completion: int, rates: Rates) -> float:
    """Seconds to sample a step: prompts are read once, then each pass decodes a token of every row."""
    prompts, rows = config.rollout.num_prompts, decoded_rows(config, config.rollout)
    passes = prompts * config.rollout.num_generations / rows * completion
    reading = model.operations(prompts * prompt, prompt / 2)
    decoding = model.operations(rows, prompt + completion / 2)
    each = decoding / rates.decoding_body + model.head(rows).operations / rates.decoding_head
    return (reading / rates.body + passes * each) / EFFICIENCY


def training_seconds(model: Model, work: Work, sampled: int, length: int, rates: Rates, checkpointing: bool) -> float:
    """Seconds of a step's passes. sampled: tokens in a micro-batch. length: tokens of a prompt with its completion."""
    # A pass forward, and back to its inputs and, unless they are frozen, its weights.
    times = (2 if model.frozen else 3) + checkpointing
    attended = length / 2  # tokens before one, on average
    body = times * model.operations(work.training_tokens, attended) + model.operations(work.reading_tokens, attended)
    again = 0.0 if model.frozen else max(0.0, 1 - KEPT / max(1, sampled * model.vocabulary))  # logits that were not kept
    head = model.head(sampled).operations * (work.training * ((2 if model.frozen else 3) + again) + work.reading)
    return (body / rates.body + head / rates.head) / EFFICIENCY
