"""One completion from vLLM: builds its requests, and validates and collects the answers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from gspo.backends.hf.stopping import StopStrings, cut, decode, left_out, stops_by_kind
from gspo.backends.vllm.calls import shown
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.routed_experts import Routers
from gspo.types import Rollout, Sampling

AT_ONCE = 64  # tokens per search for stop strings: after a match, they are decoded repeatedly


class Request:
    """A completion that may arrive in parts, each from the weights current at the time. Raises ValueError for a stop string
    that can never match. `so_far` has no `stop` until it is done. size: of the vocabulary.
    """

    def __init__(
        self,
        so_far: Rollout,
        seed: int,
        sampling: Sampling,
        tokenizer: PreTrainedTokenizerBase,
        size: int,
        routers: Routers | None = None,
    ) -> None:
        self.so_far, self.seed, self.sampling = so_far, seed, sampling
        self.tokenizer, self.size, self.routers = tokenizer, size, routers
        self.special, self.texts = stops_by_kind(tokenizer, sampling)
        self.unread = left_out(tokenizer, sampling)
        if routers is not None and so_far.routes is None:
            self.so_far = dataclasses.replace(so_far, routes=routers.unknown(len(so_far.tokens)))
        if not so_far.stop:
            self.so_far = self._ended(self.so_far, "")

    @property
    def sampled(self) -> int:
        """Number of tokens sampled so far."""
        return int(self.so_far.sampled.sum())

    @property
    def routed(self) -> int:
        """Index of the first token whose experts the next part reports; earlier ones belong to the weights of their time."""
        return len(self.so_far.tokens) - 1 if self.sampled else 0

    def request(self) -> dict[str, Any]:
        """The request for the rest of the completion."""
        sampling, count = self.sampling, self.sampled
        seed = self.seed if not count else int(np.random.SeedSequence([self.seed, count]).generate_state(1)[0])
        return {
            "token_ids": self.so_far.tokens.tolist(),
            "sampling_params": {
                "max_tokens": sampling.max_new_tokens - count, "temperature": sampling.temperature,
                "top_p": sampling.top_p, "top_k": sampling.top_k, "seed": seed, "stop": self.texts,
                "stop_token_ids": list(dict.fromkeys([*sampling.stop_ids, *self.special])), "ignore_eos": True,
                "logprobs": 0, "detokenize": bool(self.texts), "include_stop_str_in_output": True,
                "skip_special_tokens": False,
                "routed_experts_prompt_start": self.routed,
            },
        }  # fmt: skip

    def add(self, answer: Mapping[str, Any], earliest: int, latest: int, interrupted: bool = False) -> None:
        """Appends an answer, sampled by versions `earliest` to `latest` of the weights. Raises EngineError if it is invalid.
        interrupted: whether a weight update, say, may have ended the request before its first token.
        """
        try:
            choice = answer["choices"][0]
            tokens = [index(token) for token in choice["token_ids"] or []]
            logp = [float(entry["logprob"]) for entry in (choice["logprobs"] or {"content": []})["content"]]
            spans = [(s["version"], index(s["start"]), index(s["end"])) for s in choice["weight_versions"] or []]
            reason, experts = choice["finish_reason"], choice.get("routed_experts")
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"it answered what cannot be read ({error!r}): {shown(answer)}") from None
        if reason == "abort" and not tokens and not interrupted:  # otherwise it would be retried forever
            raise EngineError("it answered with 0 tokens and finish reason 'abort', and no weight update was the reason")
        known = {str(number): number for number in range(earliest, latest + 1)}
        self._believe(tokens, logp, spans, reason, known)
        version = torch.tensor([known[name] for name, start, end in spans for _ in range(start, end)], dtype=torch.int64)
        past, mu = self.so_far, torch.tensor(logp, dtype=torch.float32).clamp(max=0)
        grown = dataclasses.replace(
            past,
            tokens=torch.cat([past.tokens, torch.tensor(tokens, dtype=torch.int64)]),
            sampled=torch.cat([past.sampled, torch.ones(len(tokens), dtype=torch.bool)]),
            logp=torch.cat([past.logp, mu if self.sampling.temperature > 0 else torch.zeros_like(mu)]),
            version=torch.cat([past.version, version]),
            routes=self._routes(experts, len(tokens)),
        )
        # A single assignment, since a checkpoint may read it at any time.
        self.so_far = self._ended(grown, "" if reason == "abort" else reason)

    def _believe(
        self, tokens: list[int], logp: list[float], spans: list[tuple[str, int, int]], reason: Any, known: Mapping[str, int]
    ) -> None:
        """Raises EngineError if an answer cannot be a part of this completion from the `known` versions."""
        borders = [0, *(end for _, _, end in spans)]
        inside = [start for _, start, _ in spans] == borders[:-1] and borders == sorted(borders)
        if len(tokens) != len(logp) or not inside or borders[-1] != len(tokens):
            wrong = f"{len(tokens)} tokens with {len(logp)} log-probabilities and versions {shown(spans)}"
        elif not tokens and reason != "abort":
            wrong = "0 tokens"
        elif len(tokens) > self.sampling.max_new_tokens - self.sampled:
            wrong = f"{len(tokens)} tokens, more than it was asked for"
        elif not all(0 <= token < self.size for token in tokens):
            wrong = f"tokens outside of 0 to {self.size - 1}"
        elif not all(math.isfinite(value) and value < 1e-3 for value in logp):
            wrong = "log-probabilities that are no numbers up to 0"
        elif reason not in ("stop", "length", "abort"):
            wrong = f"finish reason {shown(reason)}"
        elif not all(name in known for name, *_ in spans):
            found, latest = sorted({str(name) for name, *_ in spans}), max(known.values())
            wrong = f"completions of version {found} of the weights where {latest} was loaded"
        else:
            return
        raise EngineError(f"it answered with {wrong}")

    def _routes(self, experts: Any, tokens: int) -> torch.Tensor | None:
        """Routes of all tokens so far and the `tokens` new ones; the last token has not been read yet. What an interrupted
        request does not report stays unknown: the next one reads it again, with other weights.
        """
        past, routers = self.so_far.routes, self.routers
        if past is None or routers is None:
            return None
        routes = torch.cat([past, routers.unknown(tokens)])
        if experts is not None:
            first, end = self.routed, len(routes) - 1
            try:
                routes[first:end] = routers.read(experts, end - first)
            except ValueError as error:
                raise EngineError(f"it answered with {error}") from None
        return routes

    def _ended(self, past: Rollout, reason: str) -> Rollout:
        """Sets the stop reason and cuts at the first stop string, if it has ended. reason: the engine's, or ""."""
        start = len(past.prompt.tokens)
        tokens = past.tokens[start:].tolist()
        if tokens and tokens[-1] in self.sampling.stop_ids:
            stop = "eos"
        elif reason:
            stop = reason
        elif not set(self.special).isdisjoint(tokens):
            stop = "stop"
        elif len(tokens) >= self.sampling.max_new_tokens:
            stop = "length"
        else:
            return past
        end = self._first_stop(tokens[:-1] if stop == "eos" else tokens)
        if end is not None:
            tokens, stop = tokens[:end], "stop"
        upto = start + len(tokens)
        text = decode(self.tokenizer, tokens, self.unread)
        return dataclasses.replace(
            past, tokens=past.tokens[:upto], sampled=past.sampled[:upto], logp=past.logp[:upto],
            version=past.version[:upto], stop=stop, text=cut(text, self.sampling.stop) if stop == "stop" else text,
            routes=None if past.routes is None else past.routes[:upto],
        )  # fmt: skip

    def _first_stop(self, tokens: list[int]) -> int | None:
        """Number of tokens up to and including the first stop string; None if there is none."""
        first = next((end for end, token in enumerate(tokens, 1) if token in self.special), None)
        if not self.texts:
            return first
        scan, before = StopStrings(self.tokenizer, self.texts, self.unread), tokens[:first]
        found = (scan.add(before[at : at + AT_ONCE]) for at in range(0, len(before), AT_ONCE))
        return next((end for end in found if end is not None), first)
