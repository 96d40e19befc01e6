"""Attention over a forest of tokens, registered in transformers as the attention implementation "gspo".

Without a forest it is transformers' own "sdpa". With one (keyword argument `forest`, which a model's layers pass on), a CPU
computes it in pieces (tree_segments.py): each piece is one call of a fused kernel, and the pieces of a token are merged
by their log-sum-exp: o = sum_p exp(lse_p - lse) o_p (like the tiles of FlashAttention, arXiv 2205.14135). The backward pass
of a piece needs only the merged o and lse. A GPU uses block-sparse attention (flex.py).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from gspo.backends.hf.flex import Blocks
from gspo.backends.hf.model import OWN_ATTENTION, HFModel, example_token_ids, not_allclose, tolerance, trial_forest, windows
from gspo.backends.hf.tree_segments import Piece, plan
from gspo.types import Forest

NAME = OWN_ATTENTION
# Arguments from the layers that have no effect here. Any other argument means an unsupported kind of attention.
IGNORED = {"position_ids", "use_cache", "is_causal", "output_attentions", "output_hidden_states", "output_router_logits"}
flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class PreparedPiece:
    """A piece of a plan prepared for the kernel: its indices, its padding, and one mask per window."""

    def __init__(self, piece: Piece, position: Tensor) -> None:
        self.causal, self.position = piece.causal, position
        self.queries, self.keys, self.key_mask = piece.queries, piece.keys, piece.key_mask
        self.output_tokens = piece.queries[piece.query_mask]  # tokens, in the order of the rows
        self.output_at = piece.query_mask.nonzero(as_tuple=True)
        self.without_output = None if piece.query_mask.all() else ~piece.query_mask
        self.masks: dict[Any, Tensor | None] = {}

    def mask(self, window: int | None, like: Tensor, repeats: int) -> Tensor | None:
        """The additive mask [B, 1, 1 or repeats * L, L']. Its values are finite, since a row may have no visible key."""
        key = window, like.dtype, repeats
        if key not in self.masks:
            # Without a window, the causal mask already hides a causal row's padding, which is on the right.
            hidden = None if self.key_mask.all() or (self.causal and window is None) else ~self.key_mask[:, None, None]
            if window is not None:
                back = self.position[self.queries][:, :, None] - self.position[self.keys][:, None]  # [B, L, L']
                outside = ((back >= window) | (back < 0))[:, None]
                outside = outside if self.causal else outside.repeat(1, 1, repeats, 1)
                hidden = outside if hidden is None else hidden | outside
            least = torch.finfo(like.dtype).min / 2
            bias = None if hidden is None else torch.zeros(hidden.shape, dtype=like.dtype).masked_fill_(hidden, least)
            self.masks[key] = bias
        return self.masks[key]

    def fold(self, rows: Tensor, repeats: int) -> Tensor:
        """Reshapes gathered queries [B, L, H, D] to [B, H, L, D]; for a piece that is not causal, to [B, H / repeats,
        repeats * L, D], where the query heads of a key head are folded into the queries.
        """
        if self.causal:
            return rows.transpose(1, 2)
        return rows.unflatten(2, (-1, repeats)).permute(0, 2, 3, 1, 4).flatten(2, 3)

    def unfold(self, rows: Tensor, repeats: int) -> Tensor:
        """Inverse of `fold`: the output [tokens, H, D] of the tokens that have their output in this piece."""
        if self.causal:
            rows = rows.transpose(1, 2)
        else:
            rows = rows.unflatten(2, (repeats, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3)
        return rows.flatten(0, 1) if self.without_output is None else rows[self.output_at]

    def rows(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gathers queries [T, H, D], keys and values [T, H', D] for the kernel."""
        repeats = q.shape[1] // k.shape[1]
        return self.fold(q[self.queries], repeats), self.gather_keys(k, repeats), self.gather_keys(v, repeats)

    def gather_keys(self, x: Tensor, repeats: int) -> Tensor:
        """Gathers keys or values x [T, H', D] into [B, H' * repeats, L', D] for a causal piece, else [B, H', L', D]."""
        rows = x[self.keys].transpose(1, 2)
        return rows.repeat_interleave(repeats, 1) if self.causal and repeats > 1 else rows

    def key_gradients(self, rows: Tensor, repeats: int) -> Tensor:
        """Maps the gradient of the result of `gather_keys` back to the tokens of `keys`: [B * L', H', D]."""
        if self.causal and repeats > 1:
            rows = rows.unflatten(1, (-1, repeats)).sum(2)
        return rows.transpose(1, 2).flatten(0, 1)


class PreparedForest:
    """A forest prepared for the CPU kernel. depth: tokens on its longest path."""

    def __init__(self, forest: Forest) -> None:
        self.depth = int(forest.position.max()) + 1
        self.pieces = [PreparedPiece(piece, forest.position) for piece in plan(forest)]
        self.windows: list[int | None] = []  # of each layer that attended, in layer order

    def attend(self, query: Tensor, key: Tensor, value: Tensor, window: int | None, scale: float) -> Tensor:
        """Queries [1, H, T, D], keys and values [1, H', T, D] -> [1, T, H, D]."""
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        return Forested.apply(q, k, v, self, window, scale)[None]


class Forested(torch.autograd.Function):
    """Queries [T, H, D], keys and values [T, H', D] -> [T, H, D]. window: tokens that a token may attend to; None: all."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, forest: PreparedForest, window: int | None, scale: float
    ) -> Tensor:
        """Computes each piece and merges the pieces by their log-sum-exp."""
        repeats = q.shape[1] // k.shape[1]
        out, lse = q.new_empty(q.shape), None
        for piece in forest.pieces:
            mask, causal = piece.mask(window, q, repeats), piece.causal and window is None
            o, l = flash(*piece.rows(q, k, v), 0.0, causal, attn_mask=mask, scale=scale)
            o, l = piece.unfold(o, repeats), piece.unfold(l[..., None], repeats)  # [tokens, H, D], [tokens, H, 1]
            if lse is None:
                lse = l.new_empty((*q.shape[:2], 1))
            at = piece.output_tokens
            if not piece.causal:
                before = lse[at]
                o = torch.lerp(o, out[at], (before - l).sigmoid().to(o.dtype))
                l = torch.logaddexp(before, l)
            out[at], lse[at] = o, l
        ctx.save_for_backward(out, lse, q, k, v)  # not the rows, which repeat shared tokens
        ctx.forest, ctx.window, ctx.scale = forest, window, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Computes each piece from the merged output and log-sum-exp, and adds up the gradients."""
        out, lse, q, k, v = ctx.saved_tensors
        grad, window, repeats = grads[0], ctx.window, q.shape[1] // k.shape[1]
        dq, dk, dv = (torch.zeros(x.shape, dtype=out.dtype) for x in (q, k, v))
        for piece in ctx.forest.pieces:
            mask, causal = piece.mask(window, out, repeats), piece.causal and window is None
            g, o, l = (x[piece.queries] for x in (grad, out, lse))
            if piece.without_output is not None:  # zero gradient and zero attention weights for these rows
                g[piece.without_output], l[piece.without_output] = 0.0, torch.finfo(l.dtype).max
            g, o, l = (piece.fold(x, repeats) for x in (g, o, l))
            d_rows = flash_backward(g, *piece.rows(q, k, v), o, l[..., 0], 0.0, causal, attn_mask=mask, scale=ctx.scale)
            at = piece.output_tokens
            d_queries = piece.unfold(d_rows[0], repeats)
            dq[at] = d_queries if piece.causal else dq[at] + d_queries
            for total, d_keys in zip((dk, dv), d_rows[1:]):
                total.index_add_(0, piece.keys.flatten(), piece.key_gradients(d_keys, repeats))
        return dq, dk, dv, None, None, None


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    forest: PreparedForest | Blocks | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """Queries [1, H, T, D], keys and values [1, H', T, D] of a forest -> [1, T, H, D]; without a forest, transformers' sdpa.
    Raises NotImplementedError for a kind of attention that the forest kernels do not support.
    """
    if forest is None:
        more |= {"dropout": dropout, "scaling": scaling, "sliding_window": sliding_window}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    unknown = sorted(name for name, argument in more.items() if argument is not None and name not in IGNORED)
    if unknown or dropout or query.shape[-1] != value.shape[-1]:
        raise NotImplementedError(f"attention over a forest with {unknown or 'dropout, or values of another width'}")
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    forest.windows.append(sliding_window)
    window = None if sliding_window is None or sliding_window >= forest.depth else sliding_window
    return forest.attend(query, key, value, window, query.shape[-1] ** -0.5 if scaling is None else scaling), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def forest_inputs(forest: Forest, device: torch.device) -> dict[str, Any]:
    """Extra model inputs for a forest in one row. The mask is empty, so that other attention fails on it."""
    prepared = Blocks(forest, device) if device.type == "cuda" else PreparedForest(forest)
    return {"attention_mask": torch.empty(1, 1, 0, 0, dtype=torch.bool, device=device), "forest": prepared}


def refusal(model: HFModel) -> str:
    """Switches the model to this attention and returns "". If a trial on a forest does not reproduce the outputs and
    gradients of plain rows, leaves the model unchanged and returns the reason.
    """
    if model.attention == NAME:
        return ""
    expected = windows(model.config)
    if model.attention != "sdpa":
        return f"it runs {model.attention} attention, not sdpa"
    if model.device.type not in ("cpu", "cuda"):
        return f"it runs on {model.device.type}"
    if not {"position_ids", "inputs_embeds"} <= model.inputs or expected is None:
        return "its attention is of a kind that gspo does not know"
    model.config._attn_implementation = NAME
    try:
        with model.evaluating():
            why = _mismatch(model, expected)
    except Exception as error:  # a model's own code may fail in any way on a row with branches
        why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    if why:
        model.config._attn_implementation = "sdpa"
    return why


def _mismatch(model: HFModel, expected: list[int | None]) -> str:
    """How a forest differs from its plain rows, or "". expected: the window of each layer."""
    for sizes in ((3, 2), (100, 60)) if model.device.type == "cuda" else ((3, 2),):  # on a GPU also more than one block
        forest, paths = trial_forest(*sizes)
        inputs, embed = forest_inputs(forest, model.device), model.model.get_input_embeddings()
        embedded = embed(example_token_ids(model, len(forest.tokens))).detach().requires_grad_()
        with torch.enable_grad():
            position = forest.position[None].to(model.device)
            states = model.hidden(inputs_embeds=embedded, position_ids=position, **inputs)[0]
            ours = states[torch.stack([path[-1] for path in paths])].float()
            plain = torch.stack([model.hidden(inputs_embeds=embedded[:, path])[0, -1] for path in paths]).float()
        if inputs["forest"].windows != expected:
            return f"its layers attend to windows of {inputs['forest'].windows}, not {expected}"
        if not_allclose(model, ours, plain):
            return "it reads a row with branches otherwise than its rows"
        direction = torch.linspace(-1, 1, ours.numel(), device=ours.device).view_as(ours)
        gradients = [torch.autograd.grad((x * direction).sum(), embedded)[0].float() for x in (ours, plain)]
        if not (gradients[0] - gradients[1]).norm() <= 4 * tolerance(model) * gradients[1].norm():
            return "the gradients of a row with branches are not those of its rows"
    return ""
