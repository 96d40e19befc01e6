"""Splits the attention of a forest into pieces, without a mask over all tokens.

A segment is a chain of tokens: each token but the last has exactly one child, the next token. Examples are a prompt, a
completion, a turn. A token attends causally within its segment, and to all tokens of every segment above it. In depth-first
order a segment is followed by its descendants, so both are slices of the forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gspo.types import Forest

ALIKE = 0.8  # minimum length of a row relative to the longest row of its piece
MERGE = 64  # cost of merging two pieces for a token, in keys attended to in the same time


@dataclass(frozen=True)
class Piece:
    """One batched attention call of B rows. Queries and keys are forest tokens, padded on the right. causal: both are the
    same tokens, and each attends to itself and to earlier ones. Otherwise each query attends to all keys of its row.
    """

    queries: Tensor  # [B, L]
    keys: Tensor  # [B, L']
    query_mask: Tensor  # bool [B, L], False for padding and for queries whose output is taken from another row
    key_mask: Tensor  # bool [B, L'], False for padding
    causal: bool


Span = tuple[int, int]  # begin, end (exclusive)


@dataclass
class Segment:
    """One segment of tokens [begin, end)."""

    begin: int
    end: int
    last: int  # its last descendant
    level: int  # number of segments above it
    above: Segment | None  # the segment directly above it
    copies: int = 0  # number of rows that would contain the segment if it were repeated
    repeated: bool = False  # in the causal row of each segment below it, instead of having rows of its own

    @property
    def row(self) -> list[Span]:
        """Its tokens, preceded by those of the repeated segments directly above it."""
        return [*(self.above.row if self.above and self.above.repeated else ()), (self.begin, self.end)]


def plan(forest: Forest) -> list[Piece]:
    """The pieces of a forest, causal ones first. Together they cover each pair of a token and a token that it may attend to
    exactly once. Each token has at most one output per piece, and an output in exactly one causal piece.
    """
    forest_segments = segments(forest)
    for segment in reversed(forest_segments):  # bottom-up
        segment.repeated = segment.last >= segment.end and _cheaper_repeated(segment)
        if segment.above:
            segment.above.copies += segment.copies if segment.repeated else 1
    causal: list[AttentionRow] = []
    above: dict[int, list[AttentionRow]] = {}
    covered = 0  # tokens before this one have their causal output
    for segment in forest_segments:
        if segment.repeated:
            continue
        skipped = sum(max(0, min(end, covered) - begin) for begin, end in segment.row)
        causal.append(AttentionRow(segment.row, segment.row, skipped))
        covered = segment.end
        if segment.last >= segment.end:
            above.setdefault(segment.level, []).append(AttentionRow([(segment.end, segment.last + 1)], segment.row))
    pieces = [_piece(rows, True) for rows in _alike(causal)]
    return pieces + [_piece(rows, False) for level in sorted(above) for rows in _alike(above[level])]


def segments(forest: Forest) -> list[Segment]:
    """The segments of a forest, in its order."""
    size = len(forest.parent)
    children = torch.bincount(forest.parent[forest.parent >= 0], minlength=size)
    begins = (forest.parent != torch.arange(-1, size - 1)) | (children[forest.parent] > 1)
    begins[0] = True
    starts = begins.nonzero()[:, 0].tolist()
    by_end: dict[int, Segment] = {}
    for begin, end in zip(starts, [*starts[1:], size]):
        above = by_end.get(int(forest.parent[begin]) + 1)
        by_end[end] = Segment(begin, end, int(forest.last[begin]), above.level + 1 if above else 0, above)
    return list(by_end.values())


def _cheaper_repeated(trunk: Segment) -> bool:
    """Whether it is cheaper to repeat a trunk in each row below it than to give it a piece of its own. Repeating recomputes
    the trunk's causal attention, half its length squared per extra row. A separate piece costs a merge per token below it.
    """
    return (trunk.copies - 1) * (trunk.end - trunk.begin) ** 2 < 2 * MERGE * (trunk.last + 1 - trunk.end)


@dataclass(frozen=True)
class AttentionRow:
    """Spans of queries and of keys in one row; the output of the first `skipped` queries is taken from another row."""

    queries: list[Span]
    keys: list[Span]
    skipped: int = 0

    def sizes(self) -> list[int]:
        """The number of keys and of queries."""
        return [sum(end - begin for begin, end in spans) for spans in (self.keys, self.queries)]


def _alike(rows: Sequence[AttentionRow]) -> list[list[AttentionRow]]:
    """Groups rows of similar length, to limit padding."""
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
    """The tokens of each row's spans, padded, [B, L] int64, and a mask [B, L] bool that is False at padding."""
    lists = [torch.cat([torch.arange(*span) for span in spans]) for spans in rows]
    index = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)
    size = torch.tensor([len(tokens) for tokens in lists])
    return index, torch.arange(index.shape[1]) < size[:, None]
