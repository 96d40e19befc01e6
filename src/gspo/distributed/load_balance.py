"""Assigns completions to ranks: equal load, and completions of one prompt together if that costs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gspo.types import Completion

EVEN = 1.01  # maximum over mean load at which balancing stops
TRIED = 32  # ranks, the emptiest first, that are considered as receivers for the fullest


def split_evenly(completions: Sequence[Completion], ranks: int, share: bool = False) -> list[list[int]]:
    """The indices of each rank's completions, ascending; [] for a rank that gets none. Load is counted in tokens read. The
    result is deterministic, so all ranks compute the same assignment.

    With `share` a rank reads a prompt only once for all its completions: prompts are first assigned as a whole, the largest
    first, each to the rank with the least load. Then completions move from the fullest rank to emptier ones, or are swapped,
    as long as that lowers the higher load of the two.
    """
    if ranks == 1:
        return [list(range(len(completions)))]
    work = _Work(completions, ranks, share)
    while work.even_out():
        pass
    return [sorted(held) for held in work.held]


class _Work:
    """Assignment of completions to ranks: `held` has each rank's completions, `load` the number of tokens that it reads."""

    def __init__(self, completions: Sequence[Completion], ranks: int, share: bool) -> None:
        begins = [int(completion.sampled.long().argmax()) if share else 0 for completion in completions]
        keys = [(tuple(c.tokens[:n].tolist()) if n else i) for i, (c, n) in enumerate(zip(completions, begins))]
        number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
        self.prompt = [number[key] for key in keys]  # prompt index of each completion
        self.begin = dict(zip(self.prompt, begins))  # number of tokens of each prompt
        self.rest = [len(completion.tokens) - begin for completion, begin in zip(completions, begins)]
        self.held: list[set[int]] = [set() for _ in range(ranks)]
        self.there: list[Counter[int]] = [Counter() for _ in range(ranks)]  # number of completions of each prompt, per rank
        self.load = [0] * ranks
        for piece in sorted(self._pieces(ranks), key=lambda piece: (-self._size(piece), piece)):
            rank = self.load.index(min(self.load))
            for i in piece:
                self._add(rank, i)

    def _pieces(self, ranks: int) -> list[list[int]]:
        """Each prompt's completions as one piece, or split into n pieces if they have n times the mean load of a rank."""
        groups: dict[int, list[int]] = {}
        for i, prompt in enumerate(self.prompt):
            groups.setdefault(prompt, []).append(i)
        mean = sum(map(self._size, groups.values())) / ranks
        pieces = []
        for group in groups.values():
            count = min(len(group), max(1, round(self._size(group) / mean)))
            parts: list[list[int]] = [[] for _ in range(count)]
            for i in sorted(group, key=lambda i: (-self.rest[i], i)):
                min(parts, key=lambda part: sum(self.rest[j] for j in part)).append(i)
            pieces += parts
        return pieces

    def _size(self, piece: Sequence[int]) -> int:
        return self.begin[self.prompt[piece[0]]] + sum(self.rest[i] for i in piece)

    def _add(self, rank: int, i: int) -> None:
        self.load[rank] += self._more(rank, i)
        self.held[rank].add(i)
        self.there[rank][self.prompt[i]] += 1

    def _take(self, rank: int, i: int) -> None:
        self.held[rank].remove(i)
        self.there[rank][self.prompt[i]] -= 1
        self.load[rank] -= self._more(rank, i)

    def _more(self, rank: int, i: int) -> int:
        """Number of additional tokens that a rank would read with completion i, which it does not hold."""
        return self.rest[i] + (0 if self.there[rank][self.prompt[i]] else self.begin[self.prompt[i]])

    def _swapped(self, pair: tuple[int, int], out: int, back: int | None) -> int:
        """The higher load of two ranks after `out` moved from the first to the second, and `back` in the other direction."""
        self._move(pair, out, back)
        most = max(self.load[rank] for rank in pair)
        self._move(pair[::-1], out, back)
        return most

    def _move(self, pair: tuple[int, int], out: int, back: int | None) -> None:
        full, empty = pair
        self._take(full, out)
        self._add(empty, out)
        if back is not None:
            self._take(empty, back)
            self._add(full, back)

    def even_out(self) -> bool:
        """Makes the best move away from the fullest rank. False if no move is an improvement."""
        full = self.load.index(max(self.load))
        if self.load[full] * len(self.load) <= EVEN * sum(self.load):
            return False
        others = sorted((rank for rank in range(len(self.load)) if rank != full), key=lambda rank: (self.load[rank], rank))
        best: tuple[int, int, int, int | None] = (self.load[full], 0, 0, None)
        for other in others[:TRIED]:
            for back in (None, *sorted(self.held[other])):
                for out in sorted(self.held[full]):
                    most = self._swapped((full, other), out, back)
                    if most < best[0]:
                        best = (most, other, out, back)
        if best[0] == self.load[full]:
            return False
        self._move((full, best[1]), *best[2:])
        return True
