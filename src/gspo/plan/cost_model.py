"""What learning on several ranks costs, by formula: numbers a rank holds, bytes that it sends.

Everything here is predicted. Weights are sharded along their rows, as FSDP2 and expert parallelism shard them: a rank holds
a chunk of the rows, and the first rank's chunk is never smaller than another's. Bytes are those that one rank sends where
each collective goes round in a ring: n - 1 of n parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gspo.assembly.host_memory import BFLOAT16, FLOAT32
from gspo.config.scale import ScaleConfig

DRAWN = 4  # of a row of logits in float32, to draw a token: itself, logarithms, probabilities and their sums
EVEN = 1.05  # the fullest rank over the mean that counts as even


@dataclass(frozen=True)
class Spread:
    """How a model lies among ranks: `replicas` copies of it, whose experts are divided among `experts` ranks."""

    ranks: int
    experts: int = 1
    replicas: int = 1

    @property
    def shards(self) -> int:
        """Ranks that hold one copy together, and gather its weights."""
        return self.ranks // self.replicas

    def owners(self, experts: bool) -> int:
        """Ranks that share a weight's rows and gather them; of an expert's those that hold the same experts."""
        return self.shards // self.experts if experts else self.shards


@dataclass(frozen=True)
class Weight:
    """A weight of so many `rows` of `row` numbers each. experts: it holds those of a mixture, an expert a row. narrow: ranks
    gather it in bfloat16.
    """

    rows: int
    row: int
    experts: bool = False
    narrow: bool = False

    @property
    def size(self) -> int:
        """Numbers in it."""
        return self.rows * self.row

    def whole(self, spread: Spread) -> int:
        """Numbers of it that a rank computes with: all, or its own experts."""
        return self.size // spread.experts if self.experts else self.size

    def sent(self, itemsize: int) -> int:
        """Bytes of each number of it where it is gathered. itemsize: where it stays."""
        return BFLOAT16 if self.narrow else itemsize

    def held(self, spread: Spread) -> int:
        """Numbers of it on the first rank, which is also what every rank gives when it is gathered, padding included."""
        rows = self.rows // spread.experts if self.experts else self.rows
        return -(-rows // spread.owners(self.experts)) * self.row


@dataclass(frozen=True)
class Layer:
    """Weights that lie whole on a rank at the same time. kept: from the forward to the backward pass, gathered once."""

    weights: tuple[Weight, ...]
    kept: bool = False

    def whole(self, spread: Spread, itemsize: int) -> int:
        """Bytes of it that lie on a rank once it is gathered. itemsize: of a number in its shards."""
        return sum(weight.whole(spread) * weight.sent(itemsize) for weight in self.weights)


@dataclass(frozen=True)
class Shape:
    """What the arithmetic of a model depends on besides its weights, in numbers a token: `hidden` states; `queries`, `keys`
    (and as many values) of a layer; `taken` experts of `expert_width` in each of `mixtures` layers; `width` of a dense
    layer's middle.
    """

    hidden: int
    layers: int
    queries: int
    keys: int
    width: int = 0
    mixtures: int = 0
    taken: int = 0
    expert_width: int = 0


@dataclass(frozen=True)
class Sent:
    """What a rank sends in a training micro-batch, in one that is only read, and once a step, in bytes."""

    what: str
    training: float = 0.0
    reading: float = 0.0
    step: float = 0.0

    def total(self, work: Work) -> float:
        """Bytes in a step."""
        return self.training * work.training + self.reading * work.reading + self.step


@dataclass(frozen=True)
class Work:
    """What the fullest rank reads in a step: training micro-batches and those only read, and the tokens of both."""

    training: int
    reading: int
    training_tokens: int
    reading_tokens: int


def spread_of(scale: ScaleConfig, ranks: int) -> Spread:
    """The spread that the settings ask for. Raises ValueError for numbers that do not divide one another."""
    if ranks % scale.replicas:
        raise ValueError(
            f"scale.replicas = {scale.replicas} does not divide {ranks} ranks: all copies of the model lie on as many ranks"
        )
    if ranks // scale.replicas % scale.experts:
        raise ValueError(
            f"scale.experts = {scale.experts} does not divide the {ranks // scale.replicas} ranks of a replica ({ranks} "
            f"ranks, scale.replicas = {scale.replicas})"
        )
    return Spread(ranks, scale.experts, scale.replicas)


def held(weights: Iterable[Weight], spread: Spread) -> int:
    """Numbers of the model on the first rank, the fullest."""
    return sum(weight.held(spread) * count for weight, count in Counter(weights).items())


def unevenness(weights: Sequence[Weight], spread: Spread) -> float:
    """What the fullest rank holds, over the mean of all."""
    return held(weights, spread) * spread.shards / sum(weight.size for weight in weights)


def gathered(layers: Sequence[Layer], spread: Spread, itemsize: int) -> int:
    """Bytes that are whole on a rank at the worst, in a backward pass: what is kept, and of one other layer the weights and
    their gradient, with the weights of the one below, which are fetched ahead, and the gradient of the one above, which is
    being added up. itemsize: of a number in its shards, and of a gradient that is added up.
    """
    kept = sum(layer.whole(spread, itemsize) for layer in layers if layer.kept)
    parts = [layer for layer in layers if not layer.kept]
    weights = [0, *(layer.whole(spread, itemsize) for layer in parts), 0]
    adding = [0, *(sum(w.whole(spread) for w in layer.weights) * itemsize for layer in parts), 0]
    return kept + max((weights[i - 1] + 2 * weights[i] + adding[i + 1] for i in range(1, len(parts) + 1)), default=0)


def cast(weights: Iterable[Weight], embedded: int, experts: bool) -> int:
    """Numbers of layers that are copied under autocast, and kept for the backward pass where no forward pass is made again.
    weights: that a pass reads in float32. experts: those of experts are copied too. Neither the head, which is computed in
    float32, nor the embeddings.
    """
    return sum(weight.size for weight in weights if experts >= weight.experts and weight.size != embedded)


def ring(layers: Iterable[Layer], spread: Spread, experts: bool, itemsize: int, added: bool = False) -> int:
    """Bytes that a rank sends to gather these layers once; of dense weights or experts. added: to add up their gradients,
    which have `itemsize` bytes a number, as the shards.
    """
    of = (weight for layer in layers for weight in layer.weights if weight.experts == experts)
    parts = sum(weight.held(spread) * (itemsize if added else weight.sent(itemsize)) for weight in of)
    return (spread.owners(experts) - 1) * parts


def exchanged(shape: Shape, tokens: float, spread: Spread) -> float:
    """Numbers that a rank sends to others' experts and back, in one forward or backward pass over so many tokens: dispatch
    and combine, 2 layers x tokens x k x H, but for the part that stays if all experts are chosen equally often.
    """
    return 2 * shape.mixtures * tokens * shape.taken * shape.hidden * (spread.experts - 1) / spread.experts


def sent(
    layers: Sequence[Layer], shape: Shape, spread: Spread, work: Work, itemsize: int, checkpointing: bool
) -> list[Sent]:
    """All that a rank sends in a micro-batch. itemsize: bytes a weight, a gradient and a hidden state. checkpointing: the
    backward pass makes the forward pass again.
    """
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
    """What a rank sends so that each layer is whole on the rank that writes it for the engine: the rows that it holds, but
    not those of layers that it writes itself. Copies of the model share the work.
    """
    rows = held(weights, spread) * (spread.shards - 1) / spread.shards / spread.replicas
    return Sent("weights for the engine", step=rows * itemsize)


def activations(shape: Shape, tokens: int, itemsize: int, checkpointing: bool) -> float:
    """Bytes that a forward pass over so many tokens leaves for the backward pass: an estimate, by what a layer of a
    transformer usually saves. With checkpointing those of one layer and the inputs of all others.
    """
    attention = 5 * shape.hidden + 5 * (shape.queries + 2 * shape.keys)
    dense, mixture = 5 * shape.width, shape.taken * (2 * shape.hidden + 5 * shape.expert_width)
    if checkpointing:
        numbers = shape.layers * shape.hidden + attention + (mixture or dense)
    else:
        numbers = shape.layers * attention + (shape.layers - shape.mixtures) * dense + shape.mixtures * mixture
    return float(tokens * itemsize * numbers)


def sampling(shape: Shape, vocabulary: int, rows: int, length: int, read: int, itemsize: int) -> float:
    """Bytes that the embedded sampler takes for `rows` completions of `length` tokens each, prompts included: an estimate.

    Keys and values, with the logits from which a token is drawn, or with what a layer makes of the `read` tokens of prompts
    that a pass reads. itemsize: of a key or value.
    """
    cached = 2 * shape.layers * shape.keys * itemsize
    reading = activations(replace(shape, layers=1), read, itemsize, checkpointing=True) + cached * read
    return max(reading, float(cached * rows * length + DRAWN * FLOAT32 * rows * vocabulary))


def smallest(weights: Sequence[Weight], spread: Spread, bytes_each: float, memory: float, most: int = 100_000) -> int | None:
    """The smallest number of ranks, with as many replicas and ranks for the experts, on which `bytes_each` for each number
    held fit into `memory` bytes; None where no number up to `most` would do.
    """
    unique = Counter(weights)
    for ranks in range(spread.experts * spread.replicas, most + 1, spread.experts * spread.replicas):
        tried = replace(spread, ranks=ranks)
        if sum(weight.held(tried) * count for weight, count in unique.items()) * bytes_each <= memory:
            return ranks
    return None


def evener(weights: Sequence[Weight], spread: Spread) -> Spread | None:
    """The same ranks with the fewest replicas that make the shards even; None where they are, or none does."""
    if unevenness(weights, spread) <= EVEN:
        return None
    for replicas in range(spread.replicas + 1, spread.ranks // spread.experts + 1):
        tried = replace(spread, replicas=replicas)
        if spread.ranks % (replicas * spread.experts) == 0 and unevenness(weights, tried) <= EVEN:
            return tried
    return None
