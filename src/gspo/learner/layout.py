"""Completions -> one forest of tokens -> input rows of a transformer. The layout affects the cost, never the result.

Token i may attend to token j exactly when `j <= i <= last[j]` (types.Forest). Two layouts compute this: `padded` has one row
per path from root to leaf; `shared` puts the forest into one row and computes attention branch by branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gspo.objective.completions import Completions
from gspo.types import Batch, Completion, Forest, TokenColumns

GATHERING = 1.15  # padded tokens that cost as much as one token in `shared` (lab/log.md)
# The same on a GPU. None: not measured yet, so "auto" pads. `make gpu` measures it, and its report says what to set.
GATHERING_ON_GPU: float | None = None


@dataclass(frozen=True)
class Rows:
    """Input of one forward pass: B rows of L tokens. Plain causal rows are padded on the right, where no token attends."""

    tokens: Tensor  # [B, L] int64
    position: Tensor  # [B, L] int64
    node: Tensor  # [B*L]: forest index of the token at each place, -1 for padding
    place: Tensor  # [T]: one place of each forest token
    before: Tensor  # [N]: place of the token before each sampled token, from whose hidden state it was predicted
    forest: Forest | None = None  # defines attention by its branches; None for plain causal rows


def build(completions: Sequence[Completion], share: bool = False) -> Batch:
    """The batch of these completions. With `share`, neighbours share the tokens of their common prefix up to the first
    sampled token of either, so each shared token is computed once and autograd sums its gradients.
    """
    if not completions:
        raise ValueError("a batch needs at least one completion")
    tokens, routes, parent, paths, nodes = (list[Tensor]() for _ in range(5))
    path = torch.empty(0, dtype=torch.int64)  # forest index of each token of the previous completion
    previous: Completion | None = None
    size = 0
    for completion in completions:
        keep = _common_prefix(previous, completion) if share and previous is not None else 0
        new = torch.arange(size, size + len(completion.tokens) - keep)
        path = torch.cat([path[:keep], new])
        tokens.append(completion.tokens[keep:])
        if completion.routes is not None:
            routes.append(completion.routes[keep:])
        below = parents(completion)[keep:]
        parent.append(torch.where(below < 0, -1, path[below]))
        paths.append(path)
        nodes.append(path[completion.sampled])
        size += len(new)
        previous = completion
    forest = _forest(torch.cat(tokens), torch.cat(parent))
    length = torch.tensor([len(node) for node in nodes])
    node = torch.cat(nodes)
    if (forest.parent[node] < 0).any() or (length == 0).any():
        raise ValueError("a completion needs at least one sampled token, and a prompt token before it")
    y = Completions.of(length, torch.cat([turns(completion) for completion in completions]))
    return Batch(
        forest=forest,
        path=torch.cat(paths),
        node=node,
        completion=y.completion,
        turn=y.turn,
        turn_length=y.turns().length,
        length=length,
        logp_mu=torch.cat([completion.logp_mu for completion in completions]),
        logp_old=torch.cat([completion.logp_old for completion in completions]),
        advantage=_advantages(completions, length),
        routes=torch.cat(routes) if len(routes) == len(completions) else None,
        **{column.name: _column(completions, column.name) for column in fields(TokenColumns)},
    )


def _column(completions: Sequence[Completion], name: str) -> Tensor | None:
    """The column with this name, for each sampled token, [N]; None if it is absent."""
    values = [getattr(completion, name) for completion in completions]
    return None if values[0] is None else torch.cat(values)


def parents(completion: Completion) -> Tensor:
    """Index of the token before each one on its path, -1 at a root: [L]."""
    return torch.arange(-1, len(completion.tokens) - 1) if completion.parent is None else completion.parent


def turns(completion: Completion) -> Tensor:
    """Turn of each sampled token, [|y|]."""
    return torch.zeros(len(completion.logp_mu), dtype=torch.int64) if completion.turn is None else completion.turn


def _common_prefix(a: Completion, b: Completion) -> int:
    """Number of leading tokens that b can share with its predecessor a: tokens that are equal, sampled in neither (each
    completion trains on its own sampled tokens), and before any branch in b and in a, whose end must be a descendant
    (depth-first order). Known experts must be equal too, since they may be replayed: an engine samples each completion of a
    group by itself.
    """
    n = min(len(a.tokens), len(b.tokens))
    same = (a.tokens[:n] == b.tokens[:n]) & ~a.sampled[:n] & ~b.sampled[:n]
    if a.routes is not None and b.routes is not None:
        same &= (a.routes[:n] == b.routes[:n]).flatten(1).all(1)
    if b.parent is not None:
        same &= b.parent[:n] == torch.arange(-1, n - 1)
    if a.parent is not None:
        branches = a.parent[a.parent != torch.arange(-1, len(a.tokens) - 1)]
        if len(branches):
            same &= torch.arange(n) <= branches.min()
    return int(same.long().cumprod(0).sum())


def _paths(completion: Completion) -> list[int]:
    """Number of tokens on each path of a completion from root to leaf; each path becomes a row."""
    if completion.parent is None:
        return [len(completion.tokens)]
    position, inner = [0] * len(completion.tokens), set()
    for i, p in enumerate(completion.parent.tolist()):
        position[i] = 0 if p < 0 else position[p] + 1
        inner.add(p)
    return [position[i] + 1 for i in range(len(position)) if i not in inner]


def _forest(tokens: Tensor, parent: Tensor) -> Forest:
    """The forest of these tokens, in depth-first order, with these parents."""
    last = list(range(len(parent)))
    position = [0] * len(parent)
    parents = parent.tolist()
    for i, p in enumerate(parents):
        position[i] = 0 if p < 0 else position[p] + 1
    for i in range(len(parents) - 1, -1, -1):
        if parents[i] >= 0:
            last[parents[i]] = max(last[parents[i]], last[i])
    return Forest(tokens, torch.tensor(last), parent, torch.tensor(position))


def _advantages(completions: Sequence[Completion], length: Tensor) -> Tensor:
    """[S], or [N] if any completion has per-token advantages."""
    values = [torch.as_tensor(completion.advantage, dtype=torch.float32) for completion in completions]
    if all(value.ndim == 0 for value in values):
        return torch.stack(values)
    return torch.cat([value.expand(int(n)) for value, n in zip(values, length)])


def may_look(forest: Forest) -> Tensor:
    """[T, T] bool: token i (row) may attend to token j (column) exactly when j <= i <= last[j]."""
    index = torch.arange(len(forest.tokens), device=forest.tokens.device)
    return (index[None, :] <= index[:, None]) & (index[:, None] <= forest.last[None, :])


def leaves(forest: Forest) -> Tensor:
    """Indices of the last token of each path, [B]."""
    return (forest.last == torch.arange(len(forest.last))).nonzero()[:, 0]


def places(forest: Forest) -> int:
    """Number of tokens in the padded rows, padding included."""
    return len(leaves(forest)) * (int(forest.position.max()) + 1)


def gathering(device: torch.device) -> float | None:
    """Number of padded tokens that cost as much as one token in `shared` on this device; None if unknown."""
    return GATHERING_ON_GPU if device.type == "cuda" else GATHERING


def worth_sharing(forest: Forest, gathering: float = GATHERING) -> bool:
    """Whether `shared` is faster than `padded`: it has no padding, but gathers attention inputs in every layer."""
    return places(forest) > gathering * len(forest.tokens)


def padded(batch: Batch, pad_id: int) -> Rows:
    """One row per path from root to leaf, padded on the right."""
    forest = batch.forest
    ends = leaves(forest)
    index = torch.arange(len(forest.tokens))
    row, node = ((index <= ends[:, None]) & (ends[:, None] <= forest.last)).nonzero().T  # tokens on each leaf's path
    width = int(forest.position.max()) + 1
    place = row * width + forest.position[node]
    tokens = torch.full((len(ends) * width,), pad_id)
    tokens[place] = forest.tokens[node]
    standing = torch.full_like(tokens, -1)
    standing[place] = node
    # For a token in several rows, the first place: plain assignment with repeated indices would pick an arbitrary one.
    where = torch.full_like(forest.tokens, len(tokens)).scatter_reduce_(0, node, place, "amin")
    position = torch.arange(width).expand(len(ends), width)
    return Rows(tokens.view(-1, width), position, standing, where, where[forest.parent[batch.node]])


def shared(batch: Batch) -> Rows:
    """The forest as one row."""
    forest = batch.forest
    all_tokens = torch.arange(len(forest.tokens))
    before = forest.parent[batch.node]
    return Rows(forest.tokens[None], forest.position[None], all_tokens, all_tokens, before, forest)


def size(completions: Sequence[Completion], share: bool) -> int:
    """Number of tokens in one forward pass of these completions, padding included."""
    if share:
        return len(build(completions, share).forest.tokens)
    paths = [length for completion in completions for length in _paths(completion)]
    return max(paths) * len(paths)


def micro_batches(completions: Sequence[Completion], max_tokens: int, share: bool = False) -> list[list[int]]:
    """Splits completions, by index, into micro-batches of at most `max_tokens` tokens, padding included; a longer completion
    gets its own.

    With `share`, completions keep their order, so that those of one prompt stay neighbours, and there is no padding (if
    `worth_sharing` is False there is, by a factor below GATHERING). Otherwise they are sorted by length to keep padding
    small.
    """
    paths = [_paths(completion) for completion in completions]
    widest = [max(lengths) for lengths in paths]
    order = range(len(completions)) if share else sorted(range(len(completions)), key=widest.__getitem__)
    parts: list[list[int]] = []
    size = rows = 0
    for i in order:
        width, more = widest[i], len(paths[i])
        alone = len(completions[i].tokens) if share else width * more
        if share and parts:
            size += alone - _common_prefix(completions[parts[-1][-1]], completions[i])
        else:
            rows += more
            size = width * rows
        if not parts or size > max_tokens:
            parts.append([])
            size, rows = alone, more
        parts[-1].append(i)
    return parts


def split(groups: Sequence[list[Completion]], parts: int) -> list[list[Completion]]:
    """Splits the groups, in order, into `parts` mini-batches of nearly equal size; empty ones are omitted."""
    edges = [round(i * len(groups) / parts) for i in range(parts + 1)]
    batches = [[completion for group in groups[a:b] for completion in group] for a, b in zip(edges, edges[1:])]
    return [batch for batch in batches if batch]
