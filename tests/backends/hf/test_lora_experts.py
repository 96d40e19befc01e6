"""Adapters on the stacked weights of experts: what they compute, what is written, and what is refused."""

import copy

import peft
import pytest
import torch
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from gspo.backends.hf import experts
from gspo.backends.hf.layers import linear_layers
from gspo.backends.hf.lora import BELOW, NAME, Unadapted, adapted, read_model
from gspo.backends.hf.routers import router_modules, unknown_experts
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import LoraConfig, ModelConfig
from tests.backends.hf.adapters import (
    IDS,
    LIKE_QWEN,
    OTHERS,
    WITH_EXPERTS,
    distance,
    gradients,
    logits,
    tiny,
    trained,
    with_adapters,
)
from tests.backends.hf.test_routing import FAMILIES
from tests.tiny_run import model

MISTAKEN = ("deepseek_v2", "deepseek_v3", "glm4_moe", "ernie4_5_moe", "afmoe", "hunyuan_v1_moe")


@pytest.mark.parametrize("family", [*LIKE_QWEN, *OTHERS])
def test_it_computes_and_learns_what_peft_does(family):
    made = with_adapters(tiny(family))
    ours, learned = logits(made), gradients(made)
    assert any(".experts." in name for name in learned) and all(g.any() for g in learned.values())
    for module in made.model.modules():
        if type(module).__name__ == "ParamWrapper":
            assert experts.takes_adapters(module.get_base_layer()) == (family in LIKE_QWEN)
            del module.forward  # PEFT's own makes W + B A of the whole stack
    torch.testing.assert_close(logits(made), ours, rtol=0, atol=1e-5)
    for name, gradient in gradients(made).items():
        assert distance(learned[name], gradient) < 1e-5, name


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_gradients_and_merged_weights_equal_those_of_a_loop_over_experts(rank, tmp_path):
    """Through a plain float64 model whose weights are W_e + B_e A_e alpha / r, expert by expert."""
    plain = model()
    weights = {name: p.detach().double() for name, p in plain.model.named_parameters()}
    made = with_adapters(plain, rank, alpha=3.0, targets=["experts"])
    gradient = gradients(made)
    leaves = {name: p.detach().double().requires_grad_() for name, p in trained(made).items()}
    assert len(leaves) == 8  # two stacks in each of two layers, A and B of each
    merged = dict(weights)
    for name, module in made.model.named_modules():
        if hasattr(module, "parameter_name"):
            stack = BELOW.sub("", f"{name}.") + module.parameter_name
            a, b = (leaves[f"{name}.lora_{x}.{NAME}.weight"] for x in "AB")
            # PEFT's format: A's rows are the experts' one after the other, B's columns take turns.
            count = len(weights[stack])
            delta = [b[:, e::count] @ a[e * rank : (e + 1) * rank] * 3.0 / rank for e in range(count)]
            merged[stack] = weights[stack] + torch.stack(delta)
    reference = model().model.double()
    reference.set_experts_implementation("eager")  # grouped products know no float64
    out = functional_call(reference, merged, (IDS,)).logits.log_softmax(-1)
    out[0, :-1].gather(-1, IDS[0, 1:, None])[::2].sum().backward()
    assert all(leaf.grad.any() for leaf in leaves.values())
    ours, right = ([gradient[name] for name in leaves], [leaf.grad for leaf in leaves.values()])
    assert distance(*(torch.cat([x.flatten() for x in every]) for every in (ours, right))) < 1e-6
    made.save_whole(tmp_path / "merged")
    for name, p in AutoModelForCausalLM.from_pretrained(tmp_path / "merged").named_parameters():
        assert float((p.detach() - merged[name].detach()).abs().max()) < 1e-6


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "granitemoe", "deepseek_v3", "gpt_oss"])
def test_merged_it_is_the_same_model(family, tmp_path):
    made = with_adapters(tiny(family))
    weights = copy.deepcopy(made.model.state_dict())
    with torch.no_grad():
        expected, below = logits(made), logits(Unadapted.of(made))
        for name, merged, right in (("merged", True, expected), ("below", False, below)):
            made.save_whole(tmp_path / name, merged)
            again = AutoModelForCausalLM.from_pretrained(tmp_path / name)
            assert distance(again(IDS).logits, right) < 3e-6
    assert not expected.equal(below)
    assert all(value.equal(weights[name]) for name, value in made.model.state_dict().items())  # what is in memory stays


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss"])
def test_peft_transformers_and_gspo_read_what_is_written(family, tmp_path):
    tiny(family).save(tmp_path / "base")
    made = with_adapters(read_model(ModelConfig(str(tmp_path / "base"))))
    made.save(tmp_path / "adapter")
    again = adapted(read_model(ModelConfig(str(tmp_path / "base"))), LoraConfig(rank=2, targets=WITH_EXPERTS), seed=7)
    again.load(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        right = logits(made)
        assert logits(again).equal(right)
        for read in (
            peft.PeftModel.from_pretrained(base, tmp_path / "adapter"),
            AutoModelForCausalLM.from_pretrained(tmp_path / "adapter"),
            read_model(ModelConfig(str(tmp_path / "adapter"))).model,  # merged
        ):
            assert distance(read(IDS).logits, right) < 3e-6


def test_adapters_of_half_precision_experts_stay_float32():
    """PEFT's own forward pass adds B A to the stack in the stack's type, where small updates vanish."""
    base = model()
    base.model.to(torch.bfloat16)
    made = adapted(base, LoraConfig(rank=4, targets=WITH_EXPERTS))
    assert {p.dtype for p in trained(made).values()} == {torch.float32}
    before = logits(made)
    with torch.no_grad():
        for name, p in trained(made).items():
            p.add_(1e-3 if "lora_B" in name else 0.0)
    assert logits(made).isfinite().all() and not logits(made).equal(before)
    assert all(g.isfinite().all() for g in gradients(made).values())


class Multiplied(TorchFunctionMode):
    """The types of the tokens in grouped products, by the type of the weights."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if "grouped_mm" in function.__name__:
            self.found.append((args[0].dtype, args[1].dtype))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype, autocast", [(torch.bfloat16, False), (torch.float32, False), (torch.float32, True)])
def test_adapters_are_multiplied_in_the_type_of_their_experts(dtype, autocast):
    """A GPU has a grouped kernel for bfloat16 alone: adapters in float32 would be multiplied expert by expert there."""
    base = model()
    base.model.to(dtype)
    made = adapted(base, LoraConfig(rank=4, targets=["experts"]))
    used = torch.bfloat16 if autocast else dtype
    with Multiplied() as seen, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        made.hidden(input_ids=IDS)
    assert seen.found == [(used, used)] * 12  # two stacks in each of two layers, with A and B of each


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_adapted_is_what_was_asked_for(family):
    """PEFT moves adapters of some linear layers to the experts' stacks: what it would move is left out. Some routers are
    linear layers, and answer with more than one tensor.
    """
    base = tiny(family)
    linear, gates = set(linear_layers(base.model)), router_modules(base.model)
    names = {module: name for name, module in base.model.named_modules()}
    made = with_adapters(base, targets=["all-linear"])
    below = {m.base_layer for m in made.model.modules() if isinstance(m, peft.tuners.lora.LoraLayer)}
    has = {names.get(module) for module in below}
    left = {name for name in linear - has if name.rsplit(".")[-1] not in ("gate_proj", "up_proj", "down_proj")}
    both = with_adapters(tiny(family), targets=WITH_EXPERTS) if family in LIKE_QWEN else made
    assert unknown_experts(both.model) == unknown_experts(base.model) == unknown_experts(tiny(family).model)
    assert has <= linear and not left and (linear == has or family in MISTAKEN) and not gates & below
    assert logits(made).isfinite().all()


def test_bad_input():
    dense = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(ValueError, match=r'lora.targets = \[..., "experts"\]: this model has no experts: leave it out'):
        with_adapters(build_tiny(dense, model().tokenizer))
    for family in MISTAKEN:
        with pytest.raises(ValueError, match=r'PEFT takes gate_proj of a .* for the stacks of its experts: name "experts"'):
            with_adapters(tiny(family), targets=["q_proj", "gate_proj"])
