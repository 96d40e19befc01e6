"""Record and replay of the experts, on tiny models of many families."""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from gspo.backends.hf import routing
from gspo.objective.routing import changed
from tests.backends.hf.test_routers import config_of

# What is other than in SHAPE: each token has three experts.
_PLAIN = "qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "gpt_oss", "granitemoe", "minimax_m2", "afmoe", "llama4_text"
_GROUPS = {"num_experts_per_tok": 3, "n_group": 4, "topk_group": 2}
FAMILIES = {name: {"num_experts_per_tok": 3} for name in _PLAIN} | {
    "ernie4_5_moe": {"moe_k": 3},
    "hunyuan_v1_moe": {"moe_topk": 3},
    "gemma4_text": {"top_k_experts": 3},
    "deepseek_v2": _GROUPS | {"topk_method": "group_limited_greedy"},
    "deepseek_v3": _GROUPS | {"routed_scaling_factor": 2.5, "norm_topk_prob": True},
    "glm4_moe": _GROUPS | {"routed_scaling_factor": 1.5},
    "jamba": {"num_experts_per_tok": 3, "expert_layer_period": 1, "expert_layer_offset": 0},
}
GROUPED = ("deepseek_v2", "deepseek_v3", "glm4_moe")
TOKENS = torch.randint(0, 40, (3, 11), generator=torch.Generator().manual_seed(1))


def tiny(family, seed=0, dtype=torch.float32, experts=None, **changes):
    """A model with random weights; also its correction biases, which begin at zero."""
    config = config_of(family, **FAMILIES[family] | changes)
    experts = None if family == "llama4_text" else experts  # it has kernels of its own
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation=experts)
    for name, value in [*model.named_buffers(), *model.named_parameters()]:
        if "correction_bias" in name or (name.endswith("bias") and not value.any()):
            value.data.normal_(0, 0.1)
    return model.eval()


def scored(model, tokens=TOKENS):
    logp = model(input_ids=tokens, use_cache=False).logits.log_softmax(-1)
    return logp[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]


def gradients(model, loss):
    for p in model.parameters():
        p.grad = None
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def recorded(model):
    with torch.no_grad(), routing.record(model) as recording:
        scored(model)
        return recording.take()


@pytest.mark.parametrize("experts", ["eager", "grouped_mm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_replay_of_own_choices_changes_no_bit(family, experts):
    model = tiny(family, experts=experts)
    routes = recorded(model)
    assert routes.shape == (2, 33, 3) and routes.dtype == torch.int16 and len(routes.unique()) > 3
    plain = scored(model)
    with routing.Replay(model, routes) as replay:
        again = scored(model)
    assert torch.equal(again, plain) and torch.equal(replay.own(), routes)
    assert equal(gradients(model, plain.sum()), gradients(model, again.sum()))
    assert torch.equal(scored(model), plain)  # nothing stays behind
    assert all("forward" not in vars(router) for router in routing.routers(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_experts_of_other_weights_are_replayed_exactly(family):
    model = tiny(family)
    routes, own = recorded(tiny(family, seed=1)), recorded(model)
    assert changed(routes, own).mean() > 0.3
    with routing.record(model) as recording, routing.Replay(model, routes) as replay:
        logp = scored(model)
    assert not changed(routes, recording.take()).any()
    assert torch.equal(replay.own()[0], own[0])  # the first layer reads the same
    assert not torch.equal(logp, scored(model))
    grads = gradients(model, logp.sum())
    gates = [next(router.parameters()) for router in routing.routers(model)]
    assert all(grads[name].any() for name, p in model.named_parameters() if any(p is gate for gate in gates))


@pytest.mark.parametrize("family", GROUPED)
def test_experts_of_groups_that_are_not_todays_are_let_through(family):
    """With the weights that they have today, although the router would have masked them."""
    model = tiny(family)
    router = routing.routers(model)[0]
    x = torch.randn(20, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits, _, own = router(x)
    first = torch.stack([torch.randperm(4, generator=torch.Generator().manual_seed(i))[:2] for i in range(20)])
    routes = torch.cat([2 * first, 2 * first[:, :1] + 1], -1)  # 3 experts of 2 of the 4 groups
    foreign = (routes[:, :, None] // 2 != own[:, None, :] // 2).all(-1)
    assert foreign.any(1).float().mean() > 0.5
    with torch.no_grad(), routing.Replay(model, torch.stack([routes, routes]).short()):
        _, weights, chosen = router(x)
    assert torch.equal(chosen, routes)
    scores = logits.softmax(-1) if family == "deepseek_v2" else logits.sigmoid()
    want = scores.gather(1, routes)
    if model.config.norm_topk_prob and family != "deepseek_v2":
        want = want / want.sum(1, keepdim=True)
    assert torch.allclose(weights, want * model.config.routed_scaling_factor, rtol=1e-6)


class Naive(nn.Module):
    """A router and its experts, token by token."""

    def __init__(self, block, norm, k):
        super().__init__()
        self.gate, self.experts, self.norm, self.k = block.gate.weight, block.experts, norm, k

    def forward(self, x, routes):
        rows = []
        for token, chosen in zip(x, routes.tolist()):
            p = (self.gate @ token).softmax(0)
            weights = torch.stack([p[e] for e in chosen])
            if self.norm:
                weights = weights / weights.sum()
            out = torch.zeros_like(token)
            for weight, e in zip(weights, chosen):
                gate, up = (self.experts.gate_up_proj[e] @ token).chunk(2)
                out = out + weight * (self.experts.down_proj[e] @ (torch.nn.functional.silu(gate) * up))
            rows.append(out)
        return torch.stack(rows)


@pytest.mark.parametrize(
    ("family", "norm", "rtol"),
    [("qwen3_moe", True, 1e-10), ("qwen3_moe", False, 1e-10), ("olmoe", False, 1e-10), ("mixtral", True, 1e-5)],
)
def test_gradients_of_the_router_against_a_naive_reference(family, norm, rtol, monkeypatch):
    changes = {} if family == "mixtral" else {"norm_topk_prob": norm}
    model = tiny(family, dtype=torch.float64, experts="eager", **changes)
    # Families take their softmax in float32, whatever the weights (mixtral its logits too: hence its tolerance).
    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=None, dtype=None, **_: softmax(x, dim))
    block = model.model.layers[0].mlp
    x, target = torch.randn(2, 7, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    routes = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(i))[:3] for i in range(7)])
    with routing.Replay(model, torch.stack([routes, routes]).short()):
        ours = block(x[None])
    ours = (ours[0] if isinstance(ours, tuple) else ours)[0]
    want = Naive(block, norm, 3)(x, routes)
    assert torch.allclose(ours, want, rtol=rtol, atol=rtol)
    params = [block.gate.weight, block.experts.gate_up_proj, block.experts.down_proj]
    for a, b in zip(torch.autograd.grad((ours * target).sum(), params), torch.autograd.grad((want * target).sum(), params)):
        assert a.any() and torch.allclose(a, b, rtol=10 * rtol, atol=10 * rtol)


def checkpointed(model):
    model = copy.deepcopy(model).train()
    model.gradient_checkpointing_enable(
        gradient_checkpointing_kwargs={"use_reentrant": False, "context_fn": routing.checkpoint_contexts}
    )
    return model


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3"])
def test_a_checkpointed_layer_replays_what_its_forward_pass_did(family, within):
    """Two micro-batches with other routes, both forward passes before the first backward pass, which is outside of their
    contexts, or within another replay.
    """
    plain = tiny(family)
    runs = [recorded(tiny(family, seed=seed)) for seed in (1, 2)]
    results = []
    for model in (plain, checkpointed(plain)):
        logps = []
        for routes in runs:
            with routing.Replay(model, routes):
                logps.append(scored(model))
        with routing.Replay(model, runs[0]) if within else nullcontext():
            learned = gradients(model, sum((i + 1) * logp.sum() for i, logp in enumerate(logps)))
        results.append((torch.stack(logps), learned))
    assert not torch.equal(*results[0][0])
    assert torch.equal(results[0][0], results[1][0]) and equal(results[0][1], results[1][1])


@pytest.mark.parametrize("family", ["qwen3_moe", "gemma4_text", "llama4_text"])
def test_a_checkpointed_layer_is_recorded(family):
    """What the hook computes is none of the layer's own, which is computed again without it."""
    plain, results = tiny(family), []
    for model in (plain, checkpointed(plain)):
        with routing.record(model, entropy=True, logits=True) as recording:
            loss = scored(model).sum() + recording.take("logits").square().sum()
        results.append(gradients(model, loss))
    assert equal(*results)


def test_the_innermost_of_two_replays_counts():
    model = tiny("qwen3_moe")
    outer, inner = (recorded(tiny("qwen3_moe", seed=seed)) for seed in (1, 2))
    with routing.record(model) as recording, routing.Replay(model, outer):
        with routing.Replay(model, inner):
            scored(model)
            assert torch.equal(recording.take(), inner)
        scored(model)
        assert torch.equal(recording.take(), outer)


def test_recording_goes_on_while_layers_run_again():
    plain = tiny("qwen3_moe")
    model = checkpointed(plain)
    with routing.record(model) as recording:
        gradients(model, scored(model).sum())
        assert torch.equal(recording.take(), recorded(plain))


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_replay_under_autocast(family):
    """The router's gradient also stays: casts of its weights without gradient must not be kept."""
    model = tiny(family)
    results = []
    for replays in (False, True):
        with torch.autocast("cpu", torch.bfloat16):
            routes = recorded(model)
            with routing.Replay(model, routes) if replays else nullcontext():
                logp = scored(model)
        results.append((logp, gradients(model, logp.sum())))
    assert torch.equal(results[0][0], results[1][0]) and equal(results[0][1], results[1][1])


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"])
def test_without_a_record_the_router_chooses_itself(family):
    model = tiny(family)
    own, routes = recorded(model), recorded(tiny(family, seed=1))
    with routing.Replay(model, torch.full_like(routes, -1)):
        logp = scored(model)
    assert torch.equal(logp, scored(model))
    routes[:, ::2] = -1
    with routing.record(model) as recording, routing.Replay(model, routes):
        scored(model)
    used = recording.take()
    assert torch.equal(used[:, 1::2], routes[:, 1::2])
    assert torch.equal(used[0, ::2], own[0, ::2])


def test_what_cannot_be_replayed_is_known_beforehand():
    model = tiny("deepseek_v3")
    routing.check(model, lambda: scored(model))
    assert all("forward" not in vars(router) and not router._forward_hooks for router in routing.routers(model))
    dense = AutoModelForCausalLM.from_config(config_of("qwen3"))
    with pytest.raises(ValueError, match=r'Qwen3ForCausalLM is dense .*router_replay = "none"'):
        routing.check(dense, lambda: None)
    # Its routers choose by masked maxima.
    masked = AutoModelForCausalLM.from_config(config_of("phimoe")).eval()
    assert recorded(masked).shape == (2, 33, 2)
    with pytest.raises(ValueError, match=r'PhimoeTopKRouter .* without a top-k.*router_replay = "none"'):
        routing.check(masked, lambda: scored(masked))


def test_entropy_of_the_routers():
    model = tiny("qwen3_moe")
    with torch.no_grad(), routing.record(model, entropy=True, logits=True) as recording:
        scored(model)
        entropy, logits = recording.take("entropy"), recording.take("logits")
    assert entropy.shape == (2, 33) and recording.experts == 8
    assert torch.allclose(entropy, torch.distributions.Categorical(logits=logits).entropy(), atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "value", "message"),
    [
        ((3, 33, 3), 0, r"this model has 2 routers"),
        ((2, 33), 0, r"\[2, tokens, k\] is needed"),
        ((2, 33, 2), 0, r"routes of 2 experts a token .* takes 3"),
        ((2, 33, 3), 8, r"expert 8 \(from 0\).* choose from 8"),
        ((2, 32, 3), 0, r"routes of 32 tokens .* on 33 tokens"),
        ((2, 33, 3), torch.tensor([0, 2, 4]), "of 3 groups, but this model's routers choose from 2"),
    ],
)
def test_routes_of_another_model_are_refused(shape, value, message):
    model = tiny("deepseek_v3" if "groups" in message else "qwen3_moe")
    routes = torch.zeros(shape, dtype=torch.int16) + value
    with pytest.raises(ValueError, match=message), routing.Replay(model, routes):
        scored(model)
    assert all("forward" not in vars(router) for router in routing.routers(model))


def test_a_router_that_did_not_run_is_noticed():
    model = tiny("qwen3_moe")
    with routing.record(model) as recording:
        model.model.layers[0](torch.zeros(1, 4, 32), position_embeddings=(torch.ones(1, 4, 8), torch.zeros(1, 4, 8)))
        with pytest.raises(RuntimeError, match="not all 2 routers"):
            recording.take()
