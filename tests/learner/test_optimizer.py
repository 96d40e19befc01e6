import math

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.pytorch_utils import Conv1D

from gspo.assembly.learners import norms_and_biases, optimizer_of
from gspo.backends.hf.lora import adapted
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny
from gspo.config.files import from_dict
from gspo.config.policy import LoraConfig, ResolvedOptimizer
from gspo.learner.optimizer import Optimizer, lr_at, lr_for
from tests.backends.hf.families import FAMILIES, TOKENIZER
from tests.bigram import Bigram


def test_non_finite_updates_are_skipped_counted_and_stop_the_run():
    policy = Bigram()
    before = policy.table.detach().clone()
    optimizer = Optimizer(policy.parameters(), ResolvedOptimizer(), 10, max_bad=2)

    def skipped(gradient, loss):
        policy.table.grad = torch.full_like(policy.table, gradient)
        return optimizer.step(loss)["updates/skipped"]

    assert [skipped(math.nan, 0.0), skipped(math.nan, 0.0)] == [1, 1] and torch.equal(policy.table, before)
    assert skipped(1.0, 0.0) == 0  # a good one in between starts the count anew
    assert [skipped(1.0, math.inf), skipped(1.0, math.inf)] == [1, 1]
    with pytest.raises(RuntimeError, match=r"3 updates in a row.*optimizer\.lr"):
        skipped(1.0, math.inf)


@pytest.mark.parametrize("most, share", [(1.0, 0.2), (10.0, 1.0)])
def test_a_gradient_above_the_limit_is_scaled_to_it_and_a_smaller_one_is_left(most, share):
    """By hand: the norm of (3, 4) is 5. What AdamW gets is seen in its first moment, (1 - beta1) g."""
    weights = nn.Parameter(torch.zeros(2))
    optimizer = Optimizer([weights], ResolvedOptimizer(max_grad_norm=most, beta1=0.9), 10, max_bad=2)
    weights.grad = torch.tensor([3.0, 4.0])
    assert optimizer.step(0.0)["grad_norm"] == 5.0
    first = optimizer.adamw.state[weights]["exp_avg"]
    assert first.tolist() == pytest.approx([0.1 * share * 3.0, 0.1 * share * 4.0], rel=1e-5)


def test_learning_rate_schedule():
    config = ResolvedOptimizer(lr=1.0, warmup=4, schedule="linear", min_lr=0.1)
    assert [lr_at(i, 14, config) for i in (0, 3, 4, 9, 14, 99)] == pytest.approx([0.25, 1, 1, 0.55, 0.1, 0.1])
    assert lr_at(9, 14, ResolvedOptimizer(lr=2.0, warmup=4, schedule="cosine")) == pytest.approx(1.0)
    assert lr_at(999, 10, ResolvedOptimizer(lr=2.0)) == 2.0


def test_the_rate_of_a_size_by_hand():
    assert [lr_for(n) for n in (0, 500_000, 135_000_000, 30_000_000_000, 10**12)] == [1e-5, 1e-5, 1e-5, 1e-6, 1e-6]
    assert lr_for(2_012_461_180) == 3.2e-6  # the geometric mean of both sizes, and of both rates: sqrt(1e-11)
    assert lr_for(135_000_000, adapters=True) == 1e-4 and lr_for(2_012_461_180, adapters=True) == 3.2e-5


_EXPERTS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64,
}  # fmt: skip


def decaying(optimizer):
    return {p for group in optimizer.adamw.param_groups if group["weight_decay"] for p in group["params"]}


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        *((family, {}) for family in FAMILIES), ("cohere", {"use_qk_norm": True}), ("gpt_oss", _EXPERTS),
        ("olmo2", _EXPERTS), ("phi", _EXPERTS), ("stablelm", _EXPERTS | {"qk_layernorm": True}),
        ("glm4", _EXPERTS | {"pad_token_id": 0}), ("cohere2", _EXPERTS),
    ],
)  # fmt: skip
def test_of_each_family_all_matrices_decay_but_no_norm(family, shape):
    """A norm gives its weights another scale, whatever their shape: with one along another axis they are no matrix."""
    with torch.device("meta"):
        shape = FAMILIES.get(family, {"model_type": family}) | shape
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape, vocab_size=64))
    kept = [model.get_parameter(name) for name in norms_and_biases(model)]
    decays = decaying(Optimizer(model.parameters(), ResolvedOptimizer(weight_decay=0.1), 1, 0, kept=kept))
    multiplied = (nn.Linear, nn.Embedding, nn.Conv1d, Conv1D)
    matrices = {m.weight for m in model.modules() if isinstance(m, multiplied)}
    stacked = {p for name, p in model.named_parameters() if ".experts." in name and "bias" not in name}
    norms = {p for m in model.modules() if "norm" in type(m).__name__.lower() for p in m.parameters()}
    biases = {p for name, p in model.named_parameters() if name.endswith("bias")}  # those of experts are matrices
    assert norms and matrices | stacked <= decays and not (norms | biases) & decays
    assert "use_qk_norm" not in shape or any(p.ndim > 1 for p in norms)


def test_adapters_decay():
    model = adapted(build_tiny(FAMILIES["qwen3"], TOKENIZER), LoraConfig(rank=2))
    optimizer = optimizer_of(from_dict({"optimizer": {"weight_decay": 0.5}}), HFPolicy(model), 1)
    assert decaying(optimizer) == {p for name, p in model.model.named_parameters() if "lora_" in name}


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_moments_that_are_made_ahead_change_no_number(decay):
    torch.manual_seed(0)
    start, found = [torch.randn(5, 3), torch.randn(4)], []
    for ahead in (False, True):
        parameters = [nn.Parameter(x.clone()) for x in start]
        optimizer = Optimizer(parameters, ResolvedOptimizer(lr=1e-2, weight_decay=decay), 10, 0)
        if ahead:
            optimizer.make_moments()
            assert all(set(optimizer.adamw.state[p]) == {"step", "exp_avg", "exp_avg_sq"} for p in parameters)
        for scale in (1.0, -0.3):
            for p in parameters:
                p.grad = scale * torch.ones_like(p)
            optimizer.step(0.0)
        kept = dict(optimizer.adamw.state)
        optimizer.make_moments()  # those that are there stay
        assert all(optimizer.adamw.state[p] is kept[p] for p in parameters)
        found.append([*parameters, *(x for p in parameters for _, x in sorted(optimizer.adamw.state[p].items()))])
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(*found))
