"""The head of a language model: log-probabilities and entropies of tokens without materialising all logits.

The vocabulary is processed in blocks. The forward pass keeps a running maximum and running sums per row (online softmax,
arXiv 1805.02867). The backward pass recomputes each block's probabilities and writes each row of the weight's gradient once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gspo.learner.device_to_host import nonzero

BLOCK = 1 << 24  # elements of a block of logits: 64 MiB in float32
KEPT = 1 << 26  # exponentials kept for the backward pass, which recomputes the rest: 256 MiB in float32
FEW_ROWS, FEW_WORDS = 128, 1024  # a CPU multiplies up to this many rows by blocks of so many words that stay in its cache
ROUND = 64  # words per block are a multiple of this, for fast matrix products


@dataclass(frozen=True)
class Head:
    """Logits cap tanh(scale (W h + b) / cap) of states h; without a cap, scale (W h + b). weight [V, H], bias [V].

    Computed in float32 for any weight dtype, and in float64 for float64 states.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    cap: float | None = None

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        """Logits [..., V] of states [..., H], without gradient."""
        shape, states = states.shape[:-1], states.reshape(-1, states.shape[-1])
        few = states.device.type == "cpu" and 1 < len(states) <= FEW_ROWS
        rows = _Rows(self, states, size=FEW_WORDS if few else None)
        out = rows.states.new_empty(len(rows.states), len(self.weight))
        for words in rows.blocks():
            rows.logits(words, out[:, words])
        return out.view(*shape, -1)

    def logprobs(
        self, states: Tensor, targets: Tensor, temperature: float = 1.0, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities log softmax(logits / temperature) [N] of targets [N], and optionally entropies in nats [N].
        With gradients for states [N, H], weight and bias.
        """
        inputs = (states, self.weight, self.bias)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
            return _LogProbs.apply(*inputs, targets, (self.scale, self.cap, temperature), entropy)
        with torch.no_grad():
            result = _forward(_Rows(self, states, temperature), targets, entropy)
        return result.logp, result.entropy


class _Rows:
    """N states in float32 or float64, and their logits at a temperature, one block of the vocabulary at a time.

    size: words per block. Matrix products write into existing tensors, which keeps autocast from casting them.
    """

    def __init__(self, head: Head, states: Tensor, temperature: float = 1.0, size: int | None = None):
        self.head, self.temperature = head, temperature
        wide = torch.promote_types(states.dtype, torch.float32)
        self.given, self.states = states, states.to(wide)
        # Only a bias can be -inf (an impossible word), and then 0 * inf would make the entropy nan.
        self.bias = None if head.bias is None else head.bias.to(wide).clamp(min=-1e30)
        casts = states.shape[1] if head.weight.dtype != wide else 1
        blocks = -(-len(head.weight) * max(1, len(states), casts) // BLOCK)
        self.size = size or ROUND * -(-len(head.weight) // (blocks * ROUND))
        self._cast: tuple[int, Tensor] | None = None

    def blocks(self) -> Iterator[slice]:
        """The vocabulary in blocks of `size` words; the last may be smaller."""
        words = len(self.head.weight)
        return (slice(start, min(start + self.size, words)) for start in range(0, words, self.size))

    def empty(self, words: slice) -> Tensor:
        """An uninitialised tensor for a block of logits."""
        return self.states.new_empty(len(self.states), words.stop - words.start)

    def weight(self, words: slice) -> Tensor:
        """A block of the weight in the dtype of the states."""
        if self.head.weight.dtype == self.states.dtype:
            return self.head.weight[words]
        if self._cast is None or self._cast[0] != words.start:
            self._cast = words.start, self.head.weight[words].to(self.states.dtype)
        return self._cast[1]

    def logits(self, words: slice, out: Tensor) -> Tensor:
        """Writes a block's logits / temperature into `out` [N, words]."""
        half = self.head.weight.dtype
        if out.is_cuda and torch.version.hip is None and half == self.given.dtype != self.states.dtype:
            out.copy_(torch.mm(self.given, self.head.weight[words].T, out_dtype=out.dtype))  # same sums without the casts
        else:
            torch.mm(self.states, self.weight(words).T, out=out)
        if self.bias is not None:
            out.add_(self.bias[words])
        scale, cap, T = self.head.scale, self.head.cap, self.temperature
        if cap is not None:
            return out.mul_(scale / cap).tanh_().mul_(cap / T)
        return out if scale == T else out.mul_(scale / T)

    def slope(self, logits: Tensor) -> Tensor | None:
        """1 - tanh^2, the derivative of the soft-cap at these logits; None without a cap."""
        if self.head.cap is None:
            return None
        tanh = logits * (self.temperature / self.head.cap)
        return tanh.mul_(tanh).neg_().add_(1)


@dataclass
class _ForwardPass:
    """Results of a forward pass over N rows."""

    logp: Tensor
    entropy: Tensor | None
    top: Tensor  # the highest logit
    total: Tensor  # the sum of exp(logits - top)
    kept_blocks: dict[int, tuple[Tensor, Tensor]]  # by their first word: exp(logits - top), and `top` as it was there
    mean_word: Tensor | None  # the sum over words of p W [N, H], if requested


def _forward(rows: _Rows, targets: Tensor, entropy: bool, keep: bool = False, mean_word: bool = False) -> _ForwardPass:
    """One pass over the vocabulary. e = exp(z - top) throughout; when `top` rises, the running sums are rescaled."""
    at_target = rows.states.new_zeros(len(targets))
    top = torch.full_like(at_target, torch.finfo(at_target.dtype).min)
    total, e_z = torch.zeros_like(top), torch.zeros_like(top)  # sums of e, and of e (z - top)
    pulled = torch.zeros_like(rows.states) if mean_word else None
    buffer, spare, kept_blocks = None, None, {}
    for words in rows.blocks():
        width = words.stop - words.start
        buffer = rows.empty(words) if buffer is None else buffer
        z = rows.logits(words, buffer[:, :width])
        column, inside = _columns(targets, words)
        at_target += z.gather(1, column)[:, 0].where(inside, 0)
        old, top = top, torch.maximum(top, z.amax(1))
        fade = (old - top).exp_()
        stays = keep and words.stop * len(targets) <= KEPT
        spare = rows.empty(words) if stays or spare is None else spare
        e = torch.exp(z.sub_(top[:, None]), out=spare[:, :width])
        if entropy:
            e_z = fade * (e_z + (old - top) * total) + z.mul_(e).sum(1)
        total = fade * total + e.sum(1)
        if pulled is not None:
            pulled.mul_(fade[:, None]).addmm_(e, rows.weight(words))
        if stays:
            kept_blocks[words.start], spare = (e, top), None
    log_total = total.log()
    return _ForwardPass(
        logp=at_target - top - log_total,
        entropy=log_total - e_z / total if entropy else None,
        top=top,
        total=total,
        kept_blocks=kept_blocks,
        mean_word=None if pulled is None else pulled.div_(total[:, None]),
    )


def _columns(targets: Tensor, words: slice) -> tuple[Tensor, Tensor]:
    """Each target's column in a block [N, 1] (arbitrary if it is in another block), and whether it is in this block [N]."""
    column = targets - words.start
    inside = (column >= 0) & (column < words.stop - words.start)
    return (column * inside)[:, None], inside


@dataclass
class _OutputGradients:
    """Inputs of a backward pass over N rows. top, total: as in `_ForwardPass`."""

    logp: Tensor  # gradient of logp [N], times scale / temperature
    entropy: tuple[Tensor, Tensor] | None  # gradient of the entropy [N], times scale / temperature, and the entropy itself
    targets: Tensor
    top: Tensor
    total: Tensor

    def of_logits(self, e: Tensor, top: Tensor, words: slice) -> Tensor:
        """Overwrites e = exp(logits - top) with the gradient of the block's logits: d logp = 1 - p, d H = -p (log p + H).

        For a nearly certain word, 1 - p keeps its precision here; with p = exp(logits - log sum exp) it would not.
        """
        share = (top - self.top).exp_().div_(self.total)  # p / e
        if self.entropy is None:
            e.mul_(-(share * self.logp)[:, None])
        else:
            gradient, value = self.entropy
            minus_p_log_p = torch.special.entr(e.mul_(share[:, None]))
            e.mul_(-(self.logp + gradient * value)[:, None]).addcmul_(minus_p_log_p, gradient[:, None])
        column, inside = _columns(self.targets, words)
        return e.scatter_add_(1, column, self.logp.where(inside, 0)[:, None])


def _backward(
    rows: _Rows, d_outputs: _OutputGradients, kept_blocks: dict[int, tuple[Tensor, Tensor]], needs: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The needed gradients of states, weight and bias. Consumes and overwrites `kept_blocks`."""
    weight, bias = rows.head.weight, rows.head.bias
    d_states = torch.zeros_like(rows.states) if needs[0] else None
    d_weight = torch.empty_like(weight, memory_format=torch.contiguous_format) if needs[1] else None
    d_bias = torch.empty_like(bias) if needs[2] and bias is not None else None
    buffer = None
    for words in rows.blocks():
        slope = None
        if words.start in kept_blocks:
            e, top = kept_blocks.pop(words.start)
        else:
            buffer = rows.empty(words) if buffer is None else buffer
            z, top = rows.logits(words, buffer[:, : words.stop - words.start]), d_outputs.top
            slope = rows.slope(z)
            e = z.sub_(top[:, None]).exp_()
        dz = d_outputs.of_logits(e, top, words)
        if slope is not None:
            dz.mul_(slope)
        if d_states is not None:
            d_states.addmm_(dz, rows.weight(words))
        if d_weight is not None:
            same = d_weight.dtype == dz.dtype
            part = d_weight[words] if same else dz.new_empty(dz.shape[1], weight.shape[1])
            torch.mm(dz.T, rows.states, out=part)
            if not same:
                d_weight[words] = part
        if d_bias is not None:
            d_bias[words] = dz.sum(0)
    return d_states, d_weight, d_bias


class _LogProbs(torch.autograd.Function):
    """`Head.logprobs` with gradients."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, options: Any, entropy: bool
    ) -> Any:
        scale, cap, temperature = ctx.options = options
        rows = _Rows(Head(weight, bias, scale, cap), states, temperature)
        # With a frozen head the forward pass can also compute d logp / d states: (W[target] - sum p W) scale / temperature.
        frozen = not (ctx.needs_input_grad[1] or ctx.needs_input_grad[2])
        ahead = frozen and cap is None and len(states) * len(weight) > KEPT
        result = _forward(rows, targets, entropy, keep=cap is None and not ahead, mean_word=ahead)
        pull = result.mean_word
        if pull is not None:
            pull = pull.neg_().add_(weight[targets]).mul_(scale / temperature)
        ctx.set_materialize_grads(False)
        ctx.kept_blocks, ctx.size = result.kept_blocks, rows.size
        ctx.save_for_backward(states, weight, bias, targets, result.top, result.total, result.entropy, pull)
        return result.logp, result.entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logp: Tensor | None, d_entropy: Tensor | None) -> Any:
        states, weight, bias, targets, top, total, entropy, pull = ctx.saved_tensors
        kept_blocks, ctx.kept_blocks = ctx.kept_blocks, {}
        scale, cap, temperature = ctx.options
        d_logp = torch.zeros_like(top) if d_logp is None else d_logp
        if pull is not None and d_entropy is None:
            return (pull * d_logp[:, None]).to(states.dtype), *(None,) * 5
        live = nonzero(d_logp if d_entropy is None else d_logp.abs() + d_entropy.abs())
        every = torch.zeros_like(states) if len(live) < len(top) else None
        if every is not None:  # skip tokens with zero gradient, such as those of clipped completions
            states, targets, top, total, d_logp = (x[live] for x in (states, targets, top, total, d_logp))
            d_entropy, entropy = (None if x is None else x[live] for x in (d_entropy, entropy))
            for start, pair in kept_blocks.items():
                kept_blocks[start] = pair[0][live], pair[1][live]
        factor = scale / temperature
        of_entropy = None if d_entropy is None else (d_entropy * factor, entropy)
        rows = _Rows(Head(weight, bias, scale, cap), states, temperature, ctx.size)  # same blocks as in the forward pass
        d_outputs = _OutputGradients(d_logp * factor, of_entropy, targets, top, total)
        d_states, d_weight, d_bias = _backward(rows, d_outputs, kept_blocks, ctx.needs_input_grad[:3])
        if d_states is not None:
            d_states = d_states.to(states.dtype)
            d_states = d_states if every is None else every.index_copy_(0, live, d_states)
        return d_states, d_weight, d_bias, None, None, None


def footprint(rows: int, vocabulary: int, hidden: int, frozen: bool, narrow: bool = False) -> int:
    """Memory in bytes that `Head.logprobs` needs until the end of its backward pass: blocks of logits, the gradient of the
    states, and the weight's gradient unless it is frozen. `narrow`: the weight is in bfloat16 and is cast block by block.
    """
    logits, weight = rows * vocabulary, vocabulary * hidden
    kept = 0 if frozen and logits > KEPT else min(logits, KEPT)
    block = min(logits, BLOCK)
    spare = block if kept < logits else 0  # for blocks that are not kept
    casts = (1 if frozen else 2) * min(weight, BLOCK) if narrow else 0
    own = 0 if frozen else weight // (2 if narrow else 1)
    return torch.float32.itemsize * (block + spare + kept + 2 * rows * hidden + casts + own)
