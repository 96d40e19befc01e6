"""The cost of training on several ranks, by formula: parameters that a rank holds, bytes that it sends.

Everything here is predicted. Weights are sharded by rows, as FSDP2 and expert parallelism do it: a rank holds a chunk of
rows, and the first rank's chunk is never smaller than another's. Bytes are those sent by one rank if each collective runs as
a ring: n - 1 of n parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gspo.assembly.host_memory import BFLOAT16, FLOAT32

DRAWN = 3  # float32 rows of vocabulary size to draw a token: logits, logits over the temperature, and their exponentials
EVEN = 1.05  # largest ratio of the fullest rank to the mean that counts as even


@dataclass(frozen=True)
class Spread:
    """How a model is distributed over `ranks`: `replicas` copies, each with its experts divided among `experts` ranks."""

    ranks: int
    experts: int = 1
    replicas: int = 1

    @property
    def shards(self) -> int:
        """Ranks that share one replica and gather its weights."""
        return self.ranks // self.replicas

    def owners(self, experts: bool) -> int:
        """Ranks that share a weight's rows and gather them; for experts, the ranks that hold the same experts."""
        return self.shards // self.experts if experts else self.shards


@dataclass(frozen=True)
class Weight:
    """A weight of `rows` rows with `row` numbers each."""

    rows: int
    row: int
    experts: bool = False  # it stacks the experts of a mixture, one per row
    narrow: bool = False  # it is gathered in bfloat16

    @property
    def size(self) -> int:
        """Its number of parameters."""
        return self.rows * self.row

    def whole(self, spread: Spread) -> int:
        """Parameters that a rank computes with: all, or its own experts'."""
        return self.size // spread.experts if self.experts else self.size

    def sent(self, itemsize: int) -> int:
        """Bytes per parameter when it is gathered. `itemsize` is that of its shards."""
        return BFLOAT16 if self.narrow else itemsize

    def held(self, spread: Spread) -> int:
        """Parameters on the first rank: also what each rank sends in an all-gather, padding included."""
        rows = self.rows // spread.experts if self.experts else self.rows
        return -(-rows // spread.owners(self.experts)) * self.row


@dataclass(frozen=True)
class Layer:
    """Weights that are gathered together. `kept`: gathered once and kept from the forward to the backward pass."""

    weights: tuple[Weight, ...]
    kept: bool = False

    def whole(self, spread: Spread, itemsize: int) -> int:
        """Bytes on a rank once it is gathered. `itemsize` is that of its shards."""
        return sum(weight.whole(spread) * weight.sent(itemsize) for weight in self.weights)


@dataclass(frozen=True)
class Shape:
    """The dimensions that activations and traffic depend on, in numbers per token."""

    hidden: int
    layers: int
    queries: int  # of a layer
    keys: int  # of a layer, and as many values
    width: int = 0  # intermediate size of a dense layer
    mixtures: int = 0  # layers with a mixture of experts
    taken: int = 0  # experts per token in such a layer
    expert_width: int = 0


@dataclass(frozen=True)
class Sent:
    """Bytes that a rank sends per training micro-batch, per micro-batch that is only read (forward pass), and per step."""

    what: str
    training: float = 0.0
    reading: float = 0.0
    step: float = 0.0

    def total(self, work: Work) -> float:
        """Bytes per step."""
        return self.training * work.training + self.reading * work.reading + self.step


@dataclass(frozen=True)
class Work:
    """The work of the fullest rank in a step: micro-batches to train on and to only read, and the tokens of both."""

    training: int
    reading: int
    training_tokens: int
    reading_tokens: int


def held(weights: Iterable[Weight], spread: Spread) -> int:
    """Parameters on the first rank, the fullest."""
    return sum(weight.held(spread) * count for weight, count in Counter(weights).items())


def unevenness(weights: Sequence[Weight], spread: Spread) -> float:
    """Ratio of the fullest rank's parameters to the mean."""
    return held(weights, spread) * spread.shards / sum(weight.size for weight in weights)


def gathered(layers: Sequence[Layer], spread: Spread, itemsize: int) -> int:
    """Peak bytes of gathered weights and gradients on a rank, in a backward pass.

    That is all kept layers, one other layer's weights and gradient, the prefetched weights of the layer below it and the
    gradient of the layer above it, which is still being reduced. `itemsize`: of shards and of reduced gradients.
    """
    kept = sum(layer.whole(spread, itemsize) for layer in layers if layer.kept)
    parts = [layer for layer in layers if not layer.kept]
    weights = [0, *(layer.whole(spread, itemsize) for layer in parts), 0]
    adding = [0, *(sum(w.whole(spread) for w in layer.weights) * itemsize for layer in parts), 0]
    return kept + max((weights[i - 1] + 2 * weights[i] + adding[i + 1] for i in range(1, len(parts) + 1)), default=0)


def cast(weights: Iterable[Weight], embedded: int, experts: bool) -> int:
    """Parameters that autocast copies and keeps for the backward pass, without the head and the embeddings (`embedded`)."""
    return sum(weight.size for weight in weights if experts >= weight.experts and weight.size != embedded)


def ring(layers: Iterable[Layer], spread: Spread, experts: bool, itemsize: int, added: bool = False) -> int:
    """Bytes that a rank sends in an all-gather of dense or experts' weights, or (added) in adding up their gradients."""
    of = (weight for layer in layers for weight in layer.weights if weight.experts == experts)
    parts = sum(weight.held(spread) * (itemsize if added else weight.sent(itemsize)) for weight in of)
    return (spread.owners(experts) - 1) * parts


def exchanged(shape: Shape, tokens: float, spread: Spread) -> float:
    """Numbers that a rank sends to experts on other ranks and back (dispatch and combine), in one forward or backward pass:
    2 layers x tokens x k x H, minus the part that stays local if all experts are chosen equally often.
    """
    return 2 * shape.mixtures * tokens * shape.taken * shape.hidden * (spread.experts - 1) / spread.experts


def sent(
    layers: Sequence[Layer], shape: Shape, spread: Spread, work: Work, itemsize: int, checkpointing: bool
) -> list[Sent]:
    """Everything that a rank sends in a micro-batch. `itemsize`: bytes per weight, gradient and hidden-state number."""
    again = [layer for layer in layers if not layer.kept]
    table = []
    for experts, of in ((False, "dense weights"), (True, "experts")):
        forward, backward = (ring(some, spread, experts, itemsize) for some in (layers, again))
        table += [
            Sent(f"all-gather of {of}, forward", forward, forward),
            Sent(f"all-gather of {of}, backward", backward),
            Sent(f"reduce-scatter of gradients of {of}", ring(layers, spread, experts, itemsize, added=True)),
        ]
    mine = held((weight for layer in layers for weight in layer.weights), spread)
    copies = 2 * (spread.replicas - 1) / spread.replicas * mine * itemsize
    rows = exchanged(shape, work.training_tokens / work.training, spread) * itemsize
    read = exchanged(shape, work.reading_tokens / max(1, work.reading), spread) * itemsize
    table += [
        Sent("all-reduce of gradients among replicas", copies),
        Sent("tokens to experts and back, forward", rows, read),
        Sent("tokens to experts and back, backward", rows * (2 if checkpointing else 1)),
    ]
    return [row for row in table if row.training]


def published(weights: Iterable[Weight], spread: Spread, itemsize: int) -> Sent:
    """Bytes that a rank sends for the engine: the rows it holds of layers that others write. Replicas share the work."""
    rows = held(weights, spread) * (spread.shards - 1) / spread.shards / spread.replicas
    return Sent("weights for the engine", step=rows * itemsize)


def activations(shape: Shape, tokens: int, itemsize: int, checkpointing: bool) -> float:
    """Estimated bytes saved for the backward pass; with checkpointing one layer's, and the inputs of all."""
    attention = 5 * shape.hidden + 5 * (shape.queries + 2 * shape.keys)
    dense, mixture = 5 * shape.width, shape.taken * (2 * shape.hidden + 5 * shape.expert_width)
    if checkpointing:
        numbers = shape.layers * shape.hidden + attention + (mixture or dense)
    else:
        numbers = shape.layers * attention + (shape.layers - shape.mixtures) * dense + shape.mixtures * mixture
    return float(tokens * itemsize * numbers)


def sampling(shape: Shape, vocabulary: int, rows: int, length: int, read: int, itemsize: int) -> float:
    """Estimated bytes to sample `rows` rows of `length` tokens: the larger of decoding and of a prefill of `read` tokens."""
    cached = 2 * shape.layers * shape.keys * itemsize
    reading = activations(replace(shape, layers=1), read, itemsize, checkpointing=True) + cached * read
    return max(reading, float(cached * rows * length + DRAWN * FLOAT32 * rows * vocabulary))


def smallest(weights: Sequence[Weight], spread: Spread, bytes_each: float, memory: float, most: int = 100_000) -> int | None:
    """The smallest number of ranks on which `bytes_each` bytes per held parameter fit `memory` bytes; None if none does."""
    unique = Counter(weights)
    for ranks in range(spread.experts * spread.replicas, most + 1, spread.experts * spread.replicas):
        tried = replace(spread, ranks=ranks)
        if sum(weight.held(tried) * count for weight, count in unique.items()) * bytes_each <= memory:
            return ranks
    return None
