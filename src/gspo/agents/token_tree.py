"""The calls of one conversation -> one rollout. Where the history was edited, the tokens branch into a tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gspo.agents.calls import Call
from gspo.types import Prompt, Rollout


def merge_turns(prompt: Prompt, calls: Sequence[tuple[int, Call]]) -> Rollout:
    """Merges calls, each with the index of its turn, into one unscored rollout of `prompt`.

    A call branches off where its prompt differs from the tokens so far. A prefix that it shares with an earlier call is
    stored once, so each sampled token occurs once. Two turns after the same prompt are two branches.
    """
    tree = _Tree()
    for number, call in calls:
        tree.add(number, call.rollout)
    return tree.rollout(prompt, calls[-1][1].rollout.stop)


class _Tree:
    def __init__(self) -> None:
        self.paths: list[Tensor] = []  # the nodes of each call, from root to leaf
        self.columns: dict[str, Tensor] = {}

    def add(self, number: int, rollout: Rollout) -> None:
        """Adds a call, as turn `number`."""
        start = len(rollout.prompt.tokens)
        shared = self._shared(rollout.tokens[:start])
        keep, size = len(shared), len(self.columns.get("tokens", ()))
        count = len(rollout.tokens) - keep
        nodes = torch.arange(size, size + count)
        before = torch.cat([shared[-1:] if keep else torch.tensor([-1]), nodes[:-1]])
        new = {
            "tokens": rollout.tokens[keep:], "sampled": rollout.sampled[keep:], "logp": rollout.logp[keep:],
            "version": rollout.version[keep:], "turn": torch.where(rollout.sampled[keep:], number, -1), "parent": before,
        }  # fmt: skip
        if rollout.routes is not None:
            new["routes"] = rollout.routes[keep:]
            if keep:
                self._complete_routes(shared, rollout.routes)
        self.columns = {name: torch.cat([self.columns[name], new[name]]) for name in new} if self.columns else new
        self.paths.append(torch.cat([shared, nodes]))

    def _complete_routes(self, shared: Tensor, routes: Tensor) -> None:
        """Fills in the routes of a turn's last token, which the new call is the first to read. Routes that a weight update
        lost stay unknown where a sampled token follows: the new call read that token with other weights.
        """
        unread = self.columns["routes"][shared][:, 0, 0] < 0
        unread &= ~torch.isin(shared, self.columns["parent"][self.columns["sampled"]])
        self.columns["routes"][shared[unread]] = routes[: len(shared)][unread]

    def _shared(self, prompt: Tensor) -> Tensor:
        """The nodes of the longest prefix of a prompt that the tree already holds; the newest call wins a tie."""
        best = torch.empty(0, dtype=torch.int64)
        for path in reversed(self.paths):
            n = min(len(path), len(prompt))
            same = int((self.columns["tokens"][path[:n]] == prompt[:n]).long().cumprod(0).sum())
            if same > len(best):
                best = path[:same]
        return best

    def rollout(self, prompt: Prompt, stop: str) -> Rollout:
        """The whole tree as a rollout, in depth-first order."""
        parent = self.columns["parent"]
        chain = torch.equal(parent, torch.arange(-1, len(parent) - 1))
        columns = dict(self.columns) if chain else self._ordered()
        return Rollout(prompt=prompt, stop=stop, **(columns | {"parent": None} if chain else columns))

    def _ordered(self) -> dict[str, Tensor]:
        parents = self.columns["parent"].tolist()
        children: dict[int, list[int]] = {}
        for node, above in enumerate(parents):
            children.setdefault(above, []).append(node)
        order, stack = [], list(reversed(children[-1]))
        while stack:
            node = stack.pop()
            order.append(node)
            stack.extend(reversed(children.get(node, ())))
        old = torch.tensor(order)
        new = old.argsort()
        columns = {name: column[old] for name, column in self.columns.items()}
        above = columns["parent"]
        return columns | {"parent": torch.where(above < 0, -1, new[above])}
