"""Where sampled completions end: at a stop token, a stop string, or the length limit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gspo.types import Sampling

LOOK_EVERY = 4  # tokens between two looks, where a look is dear: it waits for a GPU, or decodes text


class Ends:
    """Watches the completions of one batch, token by token.

    length [rows]: tokens of a completion, 0 while it runs. stop [rows]: "eos", "stop" or "length". What a completion
    samples between its end and the next look is cut off, so how often one looks changes no completion. A stop
    string that is a special token is looked for among the ids: such tokens are not text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, rows: int, device: torch.device) -> None:
        special, texts = stops_by_kind(tokenizer, sampling.stop)
        self.ids = {*sampling.stop_ids, *special}
        self.new, self.stop_ids = sampling.max_new_tokens, sampling.stop_ids
        self.scan = [StopStrings(tokenizer, texts) for _ in range(rows)] if texts else []
        self.length = [0] * rows
        self.stop = ["length"] * rows
        self.every = 1 if device.type == "cpu" and not texts else LOOK_EVERY
        self.seen = 0

    @property
    def count(self) -> int:
        """Completions that have ended."""
        return len(self.length) - self.length.count(0)

    def look(self, tokens: Tensor, t: int) -> None:
        """Notes the completions that end by position `t` of `tokens` [max_new_tokens, rows], positions 0 to t
        sampled.
        """
        if (t + 1) % self.every and t + 1 < self.new:
            return
        sampled = tokens[self.seen : t + 1].tolist()  # at once: each waits for a GPU
        if self.scan or t + 1 == self.new or not all(map(self.ids.isdisjoint, sampled)):
            self._note([list(ids) for ids in zip(*sampled)], t + 1 == self.new)
        self.seen = t + 1

    def _note(self, sampled: Sequence[list[int]], last: bool) -> None:
        """The ends among the tokens of each row since the last look. last: no more are sampled."""
        for row, ids in enumerate(sampled):
            if self.length[row]:
                continue
            first = None if self.ids.isdisjoint(ids) else next(at for at, token in enumerate(ids) if token in self.ids)
            if self.scan and (stop_at := self.scan[row].add(ids[:first])):
                self.length[row], self.stop[row] = stop_at, "stop"
            elif first is not None:
                self.length[row] = self.seen + first + 1
                self.stop[row] = "eos" if ids[first] in self.stop_ids else "stop"
            elif last:
                self.length[row] = self.new

    def worth_dropping(self, live: Sequence[int]) -> list[int] | None:
        """Places in `live` (rows still decoded) of the completions that still run; None while too few have ended
        to pay for moving the cache.
        """
        keep = [place for place, row in enumerate(live) if not self.length[row]]
        return keep if (len(live) - len(keep)) * 8 >= len(live) else None


class StopStrings:
    """Finds the first stop string in one completion's text as tokens come in."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> None:
        self.tokenizer, self.stop = tokenizer, stop
        self.tokens: list[int] = []
        self.start = self.read = 0  # tokens[start:read] are decoded again, for what the next ones attach to
        self.tail = ""  # the end of the text before tokens[read:], one short of a stop string

    def add(self, tokens: list[int]) -> int | None:
        """The number of tokens up to and with the one that completes a stop string; None when there is none
        yet.
        """
        self.tokens += tokens
        known_length = len(self._decode(self.read))
        text = self.tail + self._decode(len(self.tokens))[known_length:]
        if any(stop in text for stop in self.stop):
            for end in range(self.read + 1, len(self.tokens) + 1):
                part = self.tail + self._decode(end)[known_length:]
                if any(stop in part for stop in self.stop):
                    return end
        if not text.endswith("\ufffd"):  # else a character is still incomplete
            self.start, self.read = self.read, len(self.tokens)
            longest = max(map(len, self.stop))
            self.tail = text[-(longest - 1) :] if longest > 1 else ""
        return None

    def _decode(self, end: int) -> str:
        return decode(self.tokenizer, self.tokens[self.start : end])


def stops_by_kind(tokenizer: PreTrainedTokenizerBase, stop: Sequence[str]) -> tuple[list[int], list[str]]:
    """The ids of the stop strings that are special tokens, which are no text; and the other ones. Raises ValueError for one
    that has both in it: it would never be found.
    """
    if not stop:
        return [], []
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    texts = [s for s in stop if s not in special]
    for text in texts:
        if inside := next((token for token in special if token in text), None):
            raise ValueError(
                f"rollout.stop, or stop in a request: {text!r} has the special token {inside!r} and more in it, and would "
                f"never be found, since special tokens are no text: stop at {inside!r} alone, or at text without it"
            )
    return [special[s] for s in stop if s in special], texts


def decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    """The text of `tokens`, without special ones, and nothing tidied."""
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def cut(text: str, stop: Sequence[str]) -> str:
    """`text` up to and with the first stop string in it; all of it where there is none."""
    ends = [text.index(s) + len(s) for s in stop if s in text]
    return text[: min(ends)] if ends else text
