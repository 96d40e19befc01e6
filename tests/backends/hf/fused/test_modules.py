"""Kernels in a model: the same numbers, and only where a module computes what they do."""

import copy
import json
import math
from contextlib import nullcontext

import pytest
import torch
from transformers.activations import ACT2FN

import gspo
from gspo.backends.hf import fused
from gspo.backends.hf.experts import while_sampling
from gspo.backends.hf.fused import build, modules, ops
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.model import HFModel
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import LoraConfig, ModelConfig
from gspo.types import Sampling
from tests import tiny_run
from tests.backends.hf.families import FAMILIES, TOKENIZER, prompts
from tests.logged import logs, silent
from tests.tiny_run import settings as settings_of

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler here")


def random(seed, *shape, size=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * size


def numbers(model: HFModel):
    """Hidden states and gradients of some rows."""
    ids = torch.arange(2, 2 + 2 * 23).view(2, 23) % len(TOKENIZER)
    model.model.zero_grad()
    hidden = model.hidden(input_ids=ids)
    (hidden * random(5, *hidden.shape)).sum().backward()
    return [hidden.detach(), *(p.grad for p in model.model.parameters() if p.grad is not None)]


def both(family, seed=0):
    return (build_tiny(FAMILIES[family], TOKENIZER, seed, ModelConfig(device="cpu", kernels=k)) for k in ("torch", "auto"))


PLACED = {
    "qwen3_moe": (9, 0, 2), "qwen3": (9, 2, 0), "llama": (5, 2, 0), "mixtral": (5, 0, 2), "olmoe": (9, 0, 2),
    "cohere": (0, 2, 0), "granite": (5, 2, 0), "gemma2": (9, 0, 0), "gemma3": (13, 0, 0), "gpt2": (0, 0, 0),
    "bloom": (0, 0, 0), "mamba": (3, 0, 0),
}  # fmt: skip  # norms, gated layers and experts; gemma's gate is a GELU


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_the_same(family):
    plain, by_kernels = both(family)
    names = [getattr(vars(m).get("forward"), "__qualname__", "") for m in by_kernels.model.modules()]
    experts = sum(fused.placed(m) for m in by_kernels.model.modules())
    counted = sum("_norm." in name for name in names), sum("_gated." in name for name in names), experts
    assert counted == PLACED[family] and by_kernels.kernels
    assert not any("forward" in vars(m) or fused.placed(m) for m in plain.model.modules())
    theirs, ours = numbers(plain), numbers(by_kernels)
    assert len(theirs) == len(ours)
    for a, b in zip(theirs, ours):
        assert (a - b).abs().max() <= 2e-5 * a.abs().max() + 1e-12


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "llama"])
def test_a_pass_without_gradient_rounds_as_one_of_an_update(family, threads):
    """pi_old from a pass of its own is then, bit by bit, what the first update finds: its ratios are 1."""
    _, model = both(family)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for count in [*range(1, 40), 64, 65, 127, 150, 270, 391]:
            ids = torch.randint(2, len(TOKENIZER), (1, count), generator=torch.Generator().manual_seed(count))
            with torch.no_grad():
                read = model.hidden(input_ids=ids)
            assert torch.equal(read, model.hidden(input_ids=ids)), count
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("family", ["qwen3_moe", "llama", "gemma3"])
def test_completions_are_the_same(family):
    plain, by_kernels = both(family)
    request = prompts(3, 11, 7, 7, 25), 4, Sampling(max_new_tokens=20, stop_ids=(1, 5, 6), seed=3)
    for a, b in zip(HFSampler(plain).generate(*request), HFSampler(by_kernels).generate(*request)):
        assert torch.equal(a.tokens, b.tokens) and (a.logp - b.logp).abs().max() < 1e-5


def test_experts_that_a_kernel_computes_otherwise_are_noticed_before_anything_is_sampled(monkeypatch):
    _, model = both("qwen3_moe")
    HFSampler(model)
    monkeypatch.setattr(fused, "experts", lambda *given: 1.1 * ops.experts(*given))
    with pytest.raises(RuntimeError, match="gives other results with its key-value cache"):
        HFSampler(model)


def test_a_model_with_adapters_samples_by_kernels_too():
    _, model = both("qwen3_moe")
    made = adapted(model, LoraConfig(rank=2, targets=["all-linear", "experts"]))
    assert made.kernels and any(fused.placed(m) for m in made.model.modules())
    request = prompts(3, 11), 2, Sampling(max_new_tokens=9, seed=3)
    for a, b in zip(HFSampler(made).generate(*request), HFSampler(next(both("qwen3_moe"))).generate(*request)):
        assert torch.equal(a.tokens, b.tokens) and (a.logp - b.logp).abs().max() < 1e-5  # B is 0 yet


def test_no_number_depends_on_the_threads():
    _, model = both("qwen3_moe")
    threads, found = torch.get_num_threads(), []
    x, chosen = random(0, 2000, 32), random(1, 2000, 4).topk(2).indices
    block = model.model.model.layers[0]
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            inputs = x.clone().requires_grad_()
            weight = block.input_layernorm.weight
            weight.grad = None
            choices = ops.sort_choices(chosen, 4)
            there_and_back = ops.combine(ops.sent(inputs, choices), torch.ones(2000, 2), choices)
            ops.rms_norm(there_and_back, weight, 1e-6).square().sum().backward()
            found.append([inputs.grad, weight.grad])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


def test_what_the_kernels_do_not_know_goes_the_models_own_way():
    _, model = both("qwen3_moe")
    norm, x = model.model.model.norm, random(0, 3, 32)
    assert ops.suits(x) and not ops.suits(x.double()) and not ops.suits(x.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert not ops.suits(x)
    assert norm(x.double()).dtype == torch.float64
    assert not build_tiny(FAMILIES["qwen3"], TOKENIZER, 0, ModelConfig(device="cpu", autocast="bfloat16")).kernels
    assert not build_tiny(FAMILIES["qwen3"], TOKENIZER, 0, ModelConfig(device="cpu", dtype="bfloat16")).kernels


def test_a_copy_of_a_model_has_its_own_weights():
    _, model = both("llama")
    other = copy.deepcopy(model.model)
    with torch.no_grad():
        other.model.norm.weight.mul_(2)
    x = random(0, 3, 32)
    assert torch.equal(other.model.norm(x), 2 * model.model.model.norm(x))


class Shifted(torch.nn.Module):
    """Named and made as an RMSNorm, and another thing."""

    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(8)), 1e-6

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight + 1e-3


class Gelu(torch.nn.Module):
    def __init__(self, act="gelu"):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (torch.nn.Linear(8, 8) for _ in range(3))
        self.act_fn = ACT2FN[act]

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Norm(torch.nn.Module):
    """An RMSNorm in a way of its own."""

    def __init__(self, way, size=8):
        super().__init__()
        self.weight, self.eps, self.way = torch.nn.Parameter(torch.ones(size)), 1e-6, way

    def forward(self, x):
        if self.way == "outside":
            return x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps) * self.weight
        if self.way == "another's":
            return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.weight
        if self.way == "wide":
            return (x.double() / (x.double().square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight).float()
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class Clamped(Gelu):
    def __init__(self, limit):
        super().__init__("silu")
        self.limit = limit

    def forward(self, x):
        gate, up = self.gate_proj(x).clamp(max=self.limit), self.up_proj(x).clamp(-self.limit, self.limit)
        return self.down_proj(self.act_fn(gate) * up)

    def _apply_gate(self, x):
        gate, up = x.clamp(-self.limit, self.limit).chunk(2, -1)
        return self.act_fn(gate) * up


def test_near_relatives_are_told_apart():
    with torch.no_grad():
        for way, known in (("usual", True), ("outside", False), ("another's", False), ("wide", False)):
            assert (modules._norm_of(Norm(way)) is not None) == known, way
        for limit, known in ((math.inf, True), (16.0, False), (5.0, False)):
            assert (modules._gated_of(Clamped(limit)) is not None) == known
            assert modules._gate_of(Clamped(limit)) == known
    layers = torch.nn.ModuleList([Clamped(math.inf), Clamped(16.0)])
    modules.place(layers)  # each by itself
    assert ["forward" in vars(layer) for layer in layers] == [True, False]


def test_odd_calls_go_the_modules_own_way():
    norm, x = torch.nn.ModuleList([Norm("usual", 8)]), random(0, 3, 8)
    modules.place(norm)
    expected = Norm("usual", 8)(x)
    assert (norm[0](x) - expected).abs().max() < 1e-6
    assert torch.equal(norm[0](x=x), expected)
    one = torch.nn.ModuleList([Norm("usual", 1)])  # torch broadcasts its weight
    modules.place(one)
    assert torch.equal(one[0](x), Norm("usual", 1)(x))
    wrong = torch.nn.ModuleList([Norm("usual", 5)])
    modules.place(wrong)
    with pytest.raises(RuntimeError, match="size of tensor"):
        wrong[0](x)


@pytest.mark.parametrize("around, limit", [(while_sampling, 1e-6), (nullcontext, 1e-5)])
def test_experts_that_are_laid_out_otherwise(around, limit):
    _, model = both("qwen3_moe")
    block = model.model.model.layers[0].mlp.experts
    x, weights, chosen = random(0, 9, 32), random(1, 9, 2).abs(), random(2, 9, 4).topk(2).indices
    with torch.no_grad(), around():
        expected = block(x, chosen, weights)
        assert (block(x.t().contiguous().t(), chosen.int(), weights) - expected).abs().max() < limit
        for name in ("gate_up_proj", "down_proj"):
            stack = getattr(block, name)
            setattr(block, name, torch.nn.Parameter(stack.transpose(1, 2).contiguous().transpose(1, 2)))
        assert (block(x, chosen, weights) - expected).abs().max() < limit
        with pytest.raises(IndexError, match="an expert that is not there: there are 4"):
            block(x, chosen + 3, weights)
    with pytest.raises(IndexError, match="an expert that is not there"):
        block(x, chosen - 3, weights)
    block.to(torch.bfloat16)
    out = block(x, chosen, weights)
    assert out.dtype == torch.float32 and (out - expected).norm() < 0.05 * expected.norm()


def test_traced_and_saved_modules_compute_without_kernels(tmp_path):
    _, model = both("llama")
    layer, x = model.model.model.layers[0], random(0, 3, 32)
    for module in (layer.input_layernorm, layer.mlp):
        for traced in (torch.export.export(module, (x,)).module(), torch.jit.trace(module, (x,))):
            assert (traced(x) - module(x)).abs().max() < 1e-5
        torch.save(module, tmp_path / "module.pt")
        assert (torch.load(tmp_path / "module.pt", weights_only=False)(x) - module(x)).abs().max() < 1e-5


def test_modules_are_known_by_what_they_compute():
    state = torch.get_rng_state()
    with torch.no_grad():
        assert modules._norm_of(Shifted()) is None
        assert modules._gated_of(Gelu()) is None and modules._gated_of(Gelu("silu")) is not None
    torch.set_rng_state(state)
    build_tiny(FAMILIES["llama"], TOKENIZER)
    model = build_tiny(FAMILIES["llama"], TOKENIZER).model
    state = torch.get_rng_state()
    modules.place(model)
    assert torch.equal(torch.get_rng_state(), state)  # nothing is drawn


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_without_kernels_a_model_is_as_it_was_and_the_run_says_so(monkeypatch, tmp_path, kernels):
    monkeypatch.setattr(build, "_outcome", lambda: (None, "no C++ compiler was found"))
    tiny_run.model().save(tmp_path / "model")
    config = settings_of(tmp_path / "run", model={"path": str(tmp_path / "model"), "kernels": kernels}, train={"steps": 1})
    model = gspo.train(None, tiny_run.ROWS, tiny_run.likes_a, config=config).model
    assert not any("forward" in vars(m) for m in model.modules())
    told = [json.loads(line)["text"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    expected = "no compiled kernels, so steps take longer: no C++ compiler was found"
    assert (expected in told) == (kernels == "auto")


def test_a_resumed_run_that_computes_otherwise_warns():
    plain, by_kernels = (HFPolicy(model) for model in both("llama"))
    with logs(match="transformers' own operations before and are gspo's compiled kernels now"):
        by_kernels.load_state_dict(plain.state_dict())
    with silent():
        plain.load_state_dict(plain.state_dict())
