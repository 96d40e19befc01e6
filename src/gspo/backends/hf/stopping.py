"""Detects where sampled completions end: at a stop token, a stop string, or the length limit."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from gspo.types import Sampling

LOOK_EVERY = 4  # tokens between two checks where a check is expensive: it synchronises a GPU or decodes text


class Ends:
    """Tracks the ends of the completions of one batch.

    Tokens sampled between the end of a completion and the next check are cut off, so the check interval does not change any
    completion. A stop string that is a special token is matched by its id, since the text may be without it.

    Attributes:
        length: Tokens of each completion, 0 while it is running.
        stop: "eos", "stop" or "length" for each completion.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sampling: Sampling, rows: int, device: torch.device) -> None:
        special, texts = stops_by_kind(tokenizer, sampling)
        unread = left_out(tokenizer, sampling)
        self.ids = {*sampling.stop_ids, *special}
        self.new, self.stop_ids = sampling.max_new_tokens, sampling.stop_ids
        self.scan = [StopStrings(tokenizer, texts, unread) for _ in range(rows)] if texts else []
        self.length = [0] * rows
        self.stop = ["length"] * rows
        self.every = 1 if device.type == "cpu" and not texts else LOOK_EVERY
        self.seen = 0

    @property
    def count(self) -> int:
        """Number of completions that have ended."""
        return len(self.length) - self.length.count(0)

    def look(self, tokens: Tensor, t: int) -> None:
        """Checks for completions that end at or before position `t` of `tokens` [max_new_tokens, rows]."""
        if (t + 1) % self.every and t + 1 < self.new:
            return
        sampled = tokens[self.seen : t + 1].tolist()  # one transfer: each synchronises the GPU
        if self.scan or t + 1 == self.new or not all(map(self.ids.isdisjoint, sampled)):
            self._note([list(ids) for ids in zip(*sampled)], t + 1 == self.new)
        self.seen = t + 1

    def _note(self, sampled: Sequence[list[int]], last: bool) -> None:
        """Records the ends among each row's tokens since the last check. last: the length limit is reached."""
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
        """Indices into `live`, the rows still decoded, of those running; None while too few have ended to move the cache."""
        keep = [place for place, row in enumerate(live) if not self.length[row]]
        return keep if (len(live) - len(keep)) * 8 >= len(live) else None


class StopStrings:
    """Finds the first stop string in one completion's text as tokens come in."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], unread: Collection[int] = ()) -> None:
        self.tokenizer, self.stop, self.unread = tokenizer, stop, unread
        self.tokens: list[int] = []
        self.start = self.read = 0  # tokens[start:read] are decoded again, as context for the tokens that follow
        self.tail = ""  # end of the text before tokens[read:], one character shorter than the longest stop string

    def add(self, tokens: list[int]) -> int | None:
        """The number of tokens up to and including the one that completes a stop string; None if there is none yet."""
        self.tokens += tokens
        known_length = len(self._decode(self.read))
        text = self.tail + self._decode(len(self.tokens))[known_length:]
        if any(stop in text for stop in self.stop):
            for end in range(self.read + 1, len(self.tokens) + 1):
                part = self.tail + self._decode(end)[known_length:]
                if any(stop in part for stop in self.stop):
                    return end
        if not text.endswith("\ufffd"):  # else the last character is incomplete
            self.start, self.read = self.read, len(self.tokens)
            longest = max(map(len, self.stop))
            self.tail = text[-(longest - 1) :] if longest > 1 else ""
        return None

    def _decode(self, end: int) -> str:
        return decode(self.tokenizer, self.tokens[self.start : end], self.unread)


def stops_by_kind(tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> tuple[list[int], list[str]]:
    """Splits the stop strings into the ids of special tokens, and plain text. Raises ValueError for a stop string that
    contains a token that is left out of the text, and other text: it would never be found.
    """
    if not sampling.stop:
        return [], []
    special = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    unread = left_out(tokenizer, sampling)
    texts = [s for s in sampling.stop if s not in special]
    for text in texts:
        if inside := next((token for token, i in special.items() if i in unread and token in text), None):
            raise ValueError(
                f"rollout.stop, or stop in a request: {text!r} has the special token {inside!r} and more in it, and would "
                f"never be found, since this token is no text: stop at {inside!r} alone, or at text without it"
            )
    return [special[s] for s in sampling.stop if s in special], texts


TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""What rewards look for, even if a template puts it into every message."""


def left_out(tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> frozenset[int]:
    """The special tokens that the text of a completion is without: those of ends, padding and roles. Others may be a model's
    own tags, as </think> is for some.
    """
    if sampling.keep_special_tokens:
        return frozenset()
    return _structural(tokenizer, len(tokenizer)) | frozenset(sampling.stop_ids)


@lru_cache(maxsize=8)
def _structural(tokenizer: PreTrainedTokenizerBase, size: int) -> frozenset[int]:
    """Tokens of ends, padding and roles: the special ones around plain messages. size: of the vocabulary, which may grow."""
    ids = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    talk = [{"role": role, "content": "a"} for role in ("system", "user", "assistant", "user")]
    for messages in (talk, talk[1:]) if getattr(tokenizer, "chat_template", None) else ():
        with contextlib.suppress(Exception):  # templates raise anything, for a system message above all
            text = str(tokenizer.apply_chat_template(messages, tokenize=False))
            ids |= {i for i, content in special.items() if content in text and content not in TAGS}
    return frozenset(i for i in ids if i is not None)


def decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int], unread: Collection[int]) -> str:
    """The text of `tokens` without those in `unread`, and without clean-up of spaces."""
    read = [token for token in tokens if token not in unread]
    return str(tokenizer.decode(read, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def cut(text: str, stop: Sequence[str]) -> str:
    """`text` up to and including the first stop string; all of it if there is none."""
    ends = [text.index(s) + len(s) for s in stop if s in text]
    return text[: min(ends)] if ends else text
