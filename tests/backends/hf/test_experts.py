"""The experts' kernel against transformers' own, forward and backward."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gspo.backends.hf import experts
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import ModelConfig
from tests.backends.hf.adapters import distance
from tests.backends.hf.families import FAMILIES, TOKENIZER
from tests.backends.hf.test_routing import tiny as of_family


# The last one's experts have biases and transposed weights, and go transformers' own way.
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "gpt_oss"])
@pytest.mark.parametrize("tokens", [1, 3, 60])
def test_hidden_states_and_gradients(family, tokens):
    model = of_family(family)
    ids, by_kernel = torch.randint(2, 40, (1, tokens)), {}
    for kernel in ("grouped_mm", experts.NAME, "eager"):
        model.set_experts_implementation(kernel)
        model.zero_grad()
        logits = model(ids).logits
        logits.log_softmax(-1)[..., 5].sum().backward()
        by_kernel[kernel] = [logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    for kernel in ("grouped_mm", "eager"):
        for ours, theirs in zip(by_kernel[experts.NAME], by_kernel[kernel], strict=True):
            # A router's gradient may be rounding alone, of up to 2e-6.
            assert torch.allclose(ours, theirs, atol=4e-6 + 1e-5 * float(theirs.abs().max()))


def test_bfloat16_weights_and_float32_activations():
    block = of_family("qwen3_moe", dtype=torch.bfloat16).model.layers[0].mlp.experts
    x, weights, chosen = torch.randn(9, 32), torch.rand(9, 2), torch.rand(9, 4).topk(2).indices
    block.config._experts_implementation = "grouped_mm"
    theirs = block(x, chosen, weights)
    block.config._experts_implementation = experts.NAME
    assert torch.equal(block(x, chosen, weights), theirs) and theirs.dtype == torch.float32


class Products(TorchDispatchMode):
    """Types of what grouped products multiply, and how many stacked weights are rounded to bfloat16."""

    def __init__(self):
        super().__init__()
        self.types, self.casts = set(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "grouped_mm" in func.name():
            self.types |= {arg.dtype for arg in args[:2]}
        stacked = func.name() == "aten::_to_copy" and args[0].ndim == 3 and args[0].shape[0] == 4
        self.casts += stacked and kwargs.get("dtype") == torch.bfloat16
        return func(*args, **(kwargs or {}))


def mixture():
    """A mixture under autocast, as a user gets it."""
    return build_tiny(FAMILIES["qwen3_moe"], TOKENIZER, 0, ModelConfig(device="cpu", autocast="bfloat16"))


def test_autocast_rounds_experts_as_linear_layers():
    """Against a loop of linear layers, which autocast knows; float32 is farther away by far."""
    wrapped, by_kernel = mixture(), {}
    assert wrapped.config._experts_implementation == experts.NAME
    block = wrapped.model.model.layers[0].mlp.experts
    x, weights, chosen = torch.randn(40, 32), torch.rand(40, 2), torch.rand(40, 4).topk(2).indices
    for kernel in (experts.NAME, "eager", "float32"):
        block.config._experts_implementation = kernel.replace("float32", experts.NAME)
        block.zero_grad()
        inputs = x.clone().requires_grad_()
        with Products() as products, torch.autocast("cpu", torch.bfloat16, enabled=kernel != "float32"):
            out = block(inputs, chosen, weights)
            out.square().sum().backward()
        by_kernel[kernel] = [out.detach(), inputs.grad, block.gate_up_proj.grad, block.down_proj.grad]
        assert products.types == {experts.NAME: {torch.bfloat16}, "eager": set(), "float32": {torch.float32}}[kernel]
    for ours, loop, wide in zip(*by_kernel.values()):
        assert ours.dtype == loop.dtype == torch.float32
        assert distance(ours, loop) < 1e-3 < distance(wide, loop), (distance(ours, loop), distance(wide, loop))


def test_a_weight_is_rounded_once_around_a_loop():
    wrapped, ids = mixture(), torch.tensor([[2, 3, 4]])
    stacked = [p for p in wrapped.model.parameters() if p.ndim == 3]
    with torch.no_grad():
        with Products() as products, wrapped.precision(), experts.while_sampling():
            first, *_ = (wrapped.hidden(input_ids=ids) for _ in range(3))
            assert products.casts == len(stacked)
            for weight in stacked:
                weight.mul_(2)
            assert not torch.equal(wrapped.hidden(input_ids=ids), first)
        assert products.casts == 2 * len(stacked)
        with Products() as products:
            for _ in range(2):
                wrapped.hidden(input_ids=ids)
        assert products.casts == 2 * len(stacked)  # a pass outside of a loop keeps no copies
    with Products() as products, wrapped.precision(), experts.while_sampling():
        wrapped.hidden(input_ids=ids).sum().backward()
        assert products.casts == len(stacked) and all(p.grad is not None for p in stacked)


@torch.no_grad()
def test_weights_that_are_made_for_each_pass_are_no_others():
    """A new one may have the id of one that is gone."""
    weights = [torch.full((2, 8, 8), float(i)) for i in range(4)]
    with torch.autocast("cpu", torch.bfloat16), experts.while_sampling():
        for i in range(4):
            made = weights[i] * 1.0
            assert experts._cast(made).eq(i).all()
            del made
        with torch.inference_mode():
            loaded = torch.nn.Parameter(torch.ones(2, 8, 8), requires_grad=False)
        assert experts._cast(loaded).dtype == torch.bfloat16
