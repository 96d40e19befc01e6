"""Forest -> the pieces in which its attention is computed, without a mask over all tokens.

A segment is a run of tokens in which each but the last has one child alone, the next token: a prompt, a completion, a turn.
A token looks back within its segment, and at all of every segment above it. In depth-first order a segment and all that
hangs below it are neighbours, so both are slices of the forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo.types import Forest

ALIKE = 0.8  # rows of one piece are at least this share of its longest
MERGE = 64  # keys that a token could look at in the time that putting two pieces together takes


@dataclass(frozen=True)
class Piece:
    """One batched attention: B rows, each of which looks from some tokens at others.

    queries [B, L], keys [B, L']: indices of forest tokens, padded on the right. query_mask [B, L], key_mask [B, L'] bool:
    False for padding, and for queries whose output another row gives. causal: the two are equal, and a token looks at itself
    and those before it; else each looks at all keys of its row.
    """

    queries: Tensor
    keys: Tensor
    query_mask: Tensor
    key_mask: Tensor
    causal: bool


@dataclass(frozen=True)
class Plan:
    """All pieces of a forest: for each token they hold all that it may look at, once. No token has two outputs in a
    piece. Each has one in one causal piece, and these come first. depth: tokens on the longest path. position [T]: as
    in Forest.
    """

    pieces: tuple[Piece, ...]
    position: Tensor
    depth: int


Span = tuple[int, int]  # from, up to


@dataclass
class Segment:
    """One segment: its tokens, those up to `last` that hang below it, how many segments stand above it, and the one right
    above. repeated: it is looked through by all that hang from its end, in `copies` rows in all.
    """

    begin: int
    end: int
    last: int
    level: int = 0
    above: Segment | None = None
    copies: int = 0
    repeated: bool = False

    @property
    def row(self) -> list[Span]:
        """Its tokens, after those of the repeated segments right above it."""
        return [*(self.above.row if self.above and self.above.repeated else ()), (self.begin, self.end)]


def plan(forest: Forest) -> Plan:
    """How to compute the attention of a forest."""
    forest_segments = segments(forest)
    for segment in reversed(forest_segments):  # those below come first
        segment.repeated = segment.last >= segment.end and _cheaper_repeated(segment)
        if segment.above:
            segment.above.copies += segment.copies if segment.repeated else 1
    causal: list[AttentionRow] = []
    above: dict[int, list[AttentionRow]] = {}
    covered = 0  # up to here each token has its output
    for segment in forest_segments:
        if segment.repeated:
            continue
        causal.append(
            AttentionRow(segment.row, segment.row, sum(max(0, min(end, covered) - begin) for begin, end in segment.row))
        )
        covered = segment.end
        if segment.last >= segment.end:
            above.setdefault(segment.level, []).append(AttentionRow([(segment.end, segment.last + 1)], segment.row))
    pieces = [_piece(rows, True) for rows in _alike(causal)]
    pieces += [_piece(rows, False) for level in sorted(above) for rows in _alike(above[level])]
    return Plan(tuple(pieces), forest.position, int(forest.position.max()) + 1)


def segments(forest: Forest) -> list[Segment]:
    """The segments of a forest, in its order."""
    size = len(forest.parent)
    children = torch.bincount(forest.parent[forest.parent >= 0], minlength=size)
    begins = (forest.parent != torch.arange(-1, size - 1)) | (children[forest.parent] > 1)
    begins[0] = True
    starts = begins.nonzero()[:, 0].tolist()
    forest_segments: list[Segment] = []
    by_end: dict[int, Segment] = {}
    for begin, end in zip(starts, [*starts[1:], size]):
        above = by_end.get(int(forest.parent[begin]))
        segment = Segment(begin, end, int(forest.last[begin]), 0 if above is None else above.level + 1, above)
        forest_segments.append(segment)
        by_end[end - 1] = segment
    return forest_segments


def _cheaper_repeated(trunk: Segment) -> bool:
    """Whether a trunk is better looked through in each row below it than by a piece of its own, whose answers must be put
    together with theirs: that repeats its queries, half its square for each row.
    """
    return (trunk.copies - 1) * (trunk.end - trunk.begin) ** 2 < 2 * MERGE * (trunk.last + 1 - trunk.end)


@dataclass(frozen=True)
class AttentionRow:
    """Spans of tokens that look, and that they look at; the first `skipped` that look have their output elsewhere."""

    queries: list[Span]
    keys: list[Span]
    skipped: int = 0

    def sizes(self) -> tuple[int, int]:
        """Keys and queries."""
        count = [sum(end - begin for begin, end in spans) for spans in (self.keys, self.queries)]
        return count[0], count[1]


def _alike(rows: Sequence[AttentionRow]) -> list[list[AttentionRow]]:
    """Rows of like length together, so that little is padded."""
    groups: list[list[AttentionRow]] = []
    for row in sorted(rows, key=AttentionRow.sizes, reverse=True):
        if groups:
            (k, q), (most_k, most_q) = row.sizes(), groups[-1][0].sizes()
            if k >= ALIKE * most_k and ALIKE * most_q <= q <= most_q / ALIKE:
                groups[-1].append(row)
                continue
        groups.append([row])
    return groups


def _piece(rows: Sequence[AttentionRow], causal: bool) -> Piece:
    queries, query_mask = _index([row.queries for row in rows])
    keys, key_mask = (queries, query_mask) if causal else _index([row.keys for row in rows])
    skipped = torch.tensor([row.skipped for row in rows])
    return Piece(queries, keys, query_mask & (torch.arange(queries.shape[1]) >= skipped[:, None]), key_mask, causal)


def _index(rows: Sequence[Sequence[Span]]) -> tuple[Tensor, Tensor]:
    """The tokens of each row's spans, and where there are any: [B, L] int64, and bool."""
    lists = [torch.cat([torch.arange(*span) for span in spans]) for spans in rows]
    index = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)
    size = torch.tensor([len(tokens) for tokens in lists])
    return index, torch.arange(index.shape[1]) < size[:, None]
