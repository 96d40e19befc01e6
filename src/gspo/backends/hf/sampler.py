"""The embedded sampler: batched decoding on the policy's own transformers model, token ids in and out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from gspo.backends.hf import routers, routing
from gspo.backends.hf.draw import draw
from gspo.backends.hf.experts import while_sampling
from gspo.backends.hf.kv_cache import GrowingLayer, SharedCache, shared_attention
from gspo.backends.hf.model import HFModel, example_token_ids, not_allclose
from gspo.backends.hf.sampled_routes import Trail
from gspo.backends.hf.stopping import Ends, cut, decode, left_out
from gspo.interfaces import Weights, key_of
from gspo.learner.device_to_host import on_host
from gspo.types import Prompt, Rollout, Sampling

PREFILL_TOKENS = 131072  # maximum prompt tokens, padding included, in one prefill pass
SHARED_KEYS = 1 << 18  # numbers in a layer's keys of duplicate prompt tokens from which a shared prompt cache pays off
CompletionIndex = tuple[int, int]  # index of the prompt, index of its completion


class HFSampler:
    """Samples from an HFModel, which may be the model of the policy that is trained.

    Each prompt is prefilled once for all its completions in a batch; finished rows leave the batch. Tokens are drawn by
    inverse CDF, with uniforms that depend only on the seed, the prompt's index and the completion's index. So up to
    rounding, a completion depends neither on the batch size (completions decoded at once) nor on its neighbours.

    Raises RuntimeError if gspo cannot use the model's key-value cache.
    """

    def __init__(self, model: HFModel, batch_size: int = 256) -> None:
        self.model, self.batch_size, self.version = model, batch_size, 0
        self.probes: list[Rollout] = []  # `load` needs no check: the weights are the policy's own
        kinds = {type(layer) for layer in DynamicCache(config=model.config).layers}
        self.plain_cache = model.has_full_attention and kinds <= {DynamicLayer}
        # Remote code may keep tensors between calls, and tensors made in inference mode cannot be used in training.
        own = type(model.model).__module__.startswith("transformers.")
        self.mode = torch.inference_mode if own else torch.no_grad
        self.sparse = bool(routers.routers(model.model))
        self._check_cache()

    def counts(self) -> dict[str, float]:
        """Empty: there is no separate engine whose failures could be counted."""
        return {}

    def _check_cache(self) -> None:
        """Raises RuntimeError unless decoding with the cache gives the same states as a plain forward pass."""
        self.shares, self.key_width = False, 0
        with self.model.evaluating():
            if self.plain_cache and self.model.device.type == "cpu":
                with suppress(Exception):  # a model's own code may fail in any way on an unknown cache class
                    self.shares = self._decodes_well(shared=True)
            try:
                why = "" if self._decodes_well(shared=False) else "gives other results with its key-value cache than without"
            except Exception as error:  # some model families need their own cache class
                why = f"cannot be read token by token ({str(error).strip().partition(chr(10))[0]})"
        if why:
            name = type(self.model.model).__name__
            raise RuntimeError(f'{name} {why}: use sampler.engine = "vllm", if it knows this model')

    def _decodes_well(self, shared: bool) -> bool:
        model, tokens, start = self.model, example_token_ids(self.model, 6), 4
        with self.mode():
            whole = model.hidden(input_ids=tokens)
            rows = torch.zeros(2, dtype=torch.long)
            cache = self._prefill([tuple(tokens[0, :start].tolist())], rows, 2, shared)[0]
            if isinstance(cache, SharedCache):
                self.key_width = cache.layers[0].prompt_keys[0, :, 0].numel()
            with self._attending(cache), while_sampling():
                for at in range(start, 6):  # two tokens: a cache handles the first one differently from the rest
                    position, token = torch.full((2, 1), at, device=model.device), tokens[:, at, None].expand(2, 1)
                    hidden = self._read(cache, position, input_ids=token)
                    if not_allclose(model, hidden, whole[:, at, None].expand_as(hidden)):
                        return False
        return True

    def _read(self, cache: Cache, position: Tensor, **inputs: Tensor) -> Tensor:
        """Hidden states [B, 1, H] of one more token per row. Some hybrids cannot derive the position from their cache."""
        if "position_ids" in self.model.inputs:
            inputs["position_ids"] = position
        return self.model.hidden(past_key_values=cache, **inputs)

    def _attending(self, cache: Cache) -> AbstractContextManager[None]:
        """Context for a loop of `_read`: switches to the attention that supports this cache."""
        return shared_attention(self.model.config) if isinstance(cache, SharedCache) else nullcontext()

    def rest(self) -> None:
        """Does nothing: no resources are held between calls."""

    def load(self, weights: Weights) -> None:
        """Loads weights and their version. Parameters shared with the policy are not copied."""
        mine = dict(self.model.model.named_parameters())
        with torch.no_grad():
            for name, value in weights.tensors():
                if mine[name] is not value:
                    mine[name].copy_(value)
        self.version = weights.version

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Rollout]:
        """Samples `n` completions per prompt, in the order of the prompts. Calls `progress` with the number of completions
        that have ended so far. Raises ValueError for a prompt that is empty or too long for the model.

        Rollout.logp is the float32 log-probability under the distribution that was drawn from: at the temperature, after
        top-k (exactly k tokens) and top-p. At temperature 0 this distribution has one token, so logp is 0. `stop` is "eos"
        for one of sampling.stop_ids, "stop" for a stop string, "length" otherwise. `text` is without the special tokens
        of ends, padding and roles (stopping.py:left_out), and ends with the stop string.
        """
        self._check(prompts, sampling)
        rollouts: dict[CompletionIndex, Rollout] = {}
        with self.model.evaluating():
            for rows in self._chunks(prompts, n):
                before = len(rollouts)
                report = None if progress is None else lambda count, base=before: progress(base + count)
                recording = routing.record(self.model.model) if sampling.routes and self.sparse else nullcontext()
                with self.mode(), self.model.precision(), while_sampling(), recording as record:
                    trail = None if record is None else Trail(record)
                    tokens, logps, ends = self._decode(prompts, rows, sampling, report, trail)
                for at, (row, *completion) in enumerate(zip(rows, tokens, logps, ends.length, ends.stop)):
                    rollout = self._rollout(prompts[row[0]], sampling, *completion)
                    routes = None if trail is None else trail.routes(at, len(rollout.tokens))
                    rollouts[row] = replace(rollout, routes=routes)
        return [rollouts[i, j] for i in range(len(prompts)) for j in range(n)]

    def _check(self, prompts: Sequence[Prompt], sampling: Sampling) -> None:
        if sampling.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens = {sampling.max_new_tokens}: must be at least 1")
        limit = self.model.context_length
        for i, prompt in enumerate(prompts):
            if not prompt.tokens:
                raise ValueError(f"prompt {i} (id {prompt.id!r}) has no tokens")
            size, new = len(prompt.tokens), sampling.max_new_tokens
            if limit is not None and size + new > limit:
                raise ValueError(
                    f"prompt {i} (id {prompt.id!r}) has {size} tokens, and with up to {new} new ones {size + new}: the "
                    f"model reads at most {limit}. Shorten it or lower max_completion_length"
                )

    def _chunks(self, prompts: Sequence[Prompt], n: int) -> Iterator[list[CompletionIndex]]:
        """Batches of rows to decode together: of similar length, or of equal length for a cache that cannot be padded."""
        chunk: list[CompletionIndex] = []
        distinct = 0
        for i in sorted(range(len(prompts)), key=lambda i: (len(prompts[i].tokens), i)):
            size = len(prompts[i].tokens)
            mixed = chunk and not self.plain_cache and len(prompts[chunk[0][0]].tokens) != size
            if chunk and (mixed or (distinct + 1) * size > PREFILL_TOKENS):
                yield chunk
                chunk, distinct = [], 0
            distinct += 1
            for j in range(n):
                if len(chunk) == self.batch_size:
                    yield chunk
                    chunk, distinct = [], 1
                chunk.append((i, j))
        if chunk:
            yield chunk

    def _prefill(
        self, prompts: list[tuple[int, ...]], rows: Tensor, new: int, shared: bool
    ) -> tuple[Cache, Tensor, Tensor | None]:
        """Prefills each prompt once, with room in the cache for `new` more tokens. rows: the prompt's index for each row of
        the batch. shared: the cache keeps one copy of a prompt for all of its rows.

        Returns the cache of the rows, their last hidden states [B, H], and the additive mask [B, 1, 1, room] or None.
        """
        model, longest = self.model, max(map(len, prompts))
        pads = torch.tensor([[longest - len(prompt)] for prompt in prompts])  # on the left
        ids = torch.tensor([[model.pad_id] * int(pad) + list(prompt) for pad, prompt in zip(pads, prompts)])
        cache, mask, inputs = DynamicCache(config=model.config), None, {}
        prompt_of = rows.to(model.device, non_blocking=True)
        if shared:
            cache = SharedCache(model.config.num_hidden_layers, new)
            mask = torch.zeros(1, 1, 1, longest + new, dtype=model.compute_dtype).expand(len(rows), -1, -1, -1)
        elif self.plain_cache:
            cache.layers = [GrowingLayer(longest + new) for _ in range(model.config.num_hidden_layers)]
            # On a CPU a mask of zeros is faster than no mask: transformers then packs query heads that share a key head.
            if pads.any() or model.device.type == "cpu":
                hide = (torch.arange(longest + new) < pads)[rows, None, None].to(model.device, non_blocking=True)
                mask = torch.zeros(hide.shape, dtype=model.compute_dtype, device=model.device)
                mask.masked_fill_(hide, torch.finfo(mask.dtype).min)
        if pads.any():
            place = torch.arange(longest) - pads
            inputs = {"attention_mask": (place >= 0).long(), "position_ids": place.clamp(min=0)}
            inputs = {name: value.to(model.device, non_blocking=True) for name, value in inputs.items()}
        ids = ids.to(model.device, non_blocking=True)
        hidden = model.hidden(input_ids=ids, past_key_values=cache, **inputs)[:, -1]
        if isinstance(cache, SharedCache):
            cache.fan_out(prompt_of, torch.arange(longest) < pads if pads.any() else None)
        else:
            cache.reorder_cache(prompt_of)  # type: ignore[arg-type]  # any integer type will do
        return cache, hidden[prompt_of], mask

    def _decode(
        self,
        prompts: Sequence[Prompt],
        rows: list[CompletionIndex],
        sampling: Sampling,
        report: Callable[[int], None] | None,
        trail: Trail | None,
    ) -> tuple[Tensor, Tensor, Ends]:
        """Samples a batch. Returns tokens and log-probabilities [rows, max_new_tokens], and where the completions end."""
        model, new, device = self.model, sampling.max_new_tokens, self.model.device
        distinct = {tokens: k for k, tokens in enumerate(dict.fromkeys(prompts[i].tokens for i, _ in rows))}
        prompt_of = torch.tensor([distinct[prompts[i].tokens] for i, _ in rows])
        longest = max(map(len, distinct))
        shared = self.shares and (len(rows) - len(distinct)) * longest * self.key_width >= SHARED_KEYS
        cache, hidden, mask = self._prefill(list(distinct), prompt_of, new, shared)
        if trail is not None:
            trail.begin([len(tokens) for tokens in distinct], prompt_of)
        position = torch.tensor([[len(prompts[i].tokens)] for i, _ in rows]).to(device, non_blocking=True)
        uniforms = _uniforms(sampling.seed, rows, new).to(device, non_blocking=True)
        tokens = torch.full((new, len(rows)), model.pad_id, device=device)
        logps = torch.zeros(new, len(rows), device=device)
        ends = Ends(model.tokenizer, sampling, len(rows), device)
        live, numbers = torch.arange(len(rows), device=device), list(range(len(rows)))  # the rows still decoded
        with self._attending(cache):
            for t in range(new):
                tokens[t, live], logps[t, live] = draw(model.logits(hidden), uniforms[t, live], sampling)
                ended_before = ends.count
                ends.look(tokens, t)
                if report and ends.count > ended_before:
                    report(ends.count)
                if ends.count == len(rows):
                    break
                if ends.count > ended_before and (keep := ends.worth_dropping(numbers)) is not None:
                    places, numbers = torch.tensor(keep).to(device, non_blocking=True), [numbers[place] for place in keep]
                    cache.reorder_cache(places)  # type: ignore[arg-type]
                    live, position = live[places], position[places]
                    mask = None if mask is None else mask[places]
                inputs = {"input_ids": tokens[t, live][:, None]}
                if mask is not None:
                    inputs["attention_mask"] = mask[..., : longest + t + 1]
                hidden = self._read(cache, position + t, **inputs)[:, -1]
                if trail is not None:
                    trail.add(live)
        if not torch.isfinite(logps).all():
            raise RuntimeError("the model's logits are not finite: its weights hold inf or nan, or overflow its dtype")
        tokens, logps = on_host([tokens, logps])
        return tokens.T, logps.T, ends

    def _rollout(self, prompt: Prompt, sampling: Sampling, tokens: Tensor, logp: Tensor, length: int, stop: str) -> Rollout:
        start = len(prompt.tokens)
        text = decode(self.model.tokenizer, tokens[:length].tolist(), left_out(self.model.tokenizer, sampling))
        sampled = torch.arange(start + length) >= start
        return Rollout(
            prompt=prompt,
            tokens=torch.cat([torch.tensor(prompt.tokens), tokens[:length]]),
            sampled=sampled,
            logp=torch.cat([torch.zeros(start), logp[:length]]),
            version=torch.where(sampled, self.version, -1),
            stop=stop,
            text=cut(text, sampling.stop) if stop == "stop" else text,
        )


def _uniforms(seed: int | tuple[int, ...], rows: list[CompletionIndex], count: int) -> Tensor:
    """Uniforms [count, rows] float32, with an independent generator for each completion."""
    each = [np.random.default_rng(key_of(seed, *row)).random(count, dtype=np.float32) for row in rows]
    return torch.from_numpy(np.stack(each, axis=1))
