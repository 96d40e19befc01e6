"""What ranks gather in bfloat16: which weights, and that it changes no number but of experts' grouped products."""

from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

from gspo.backends.hf.mixed_precision_sharding import float32_modules, narrow_gathers
from gspo.backends.hf.policy import HFPolicy
from gspo.config.scale import ScaleConfig
from gspo.distributed.ranks import whole
from gspo.learner import layout
from tests.backends.hf.folders import load_on
from tests.backends.hf.test_routers import config_of
from tests.backends.hf.test_sharded import Case, alone, completions, equal, in_shards
from tests.together import together

CASES = (Case(), Case(checkpointing=True), Case(layout="auto"), Case(more=(("beta", 0.1),)))


def pass_of(model, mine):
    """Log-probabilities of a few completions, and the gradient of their sum over all ranks."""
    policy = HFPolicy(model, layout="padded")
    logp = policy.forward(layout.build(mine)).logp
    logp.sum().backward()
    gradients = {name: whole(p.grad).clone() for name, p in model.named_parameters()}
    model.model.zero_grad()
    return logp.detach(), gradients


def types_in_a_pass(model):
    """Of each weight, as a pass reads it, the dtype; and the dtype of what the optimizer has."""
    kept, seen = {p.dtype for _, p in model.named_parameters()}, {}
    for name, module in model.model.named_modules():

        def look(module, args, name=name):
            seen.update({f"{name}.{key}": p.dtype for key, p in module.named_parameters(recurse=False)})

        module.register_forward_pre_hook(look)
    with torch.no_grad():
        HFPolicy(model).forward(layout.build(completions(0)[:2]))
    return seen, kept


def both(ranks, path, scale, kernel):
    """The same pass with float32 and with bfloat16 gathers."""
    from gspo.backends.hf import sharded

    mine, found = completions(0)[3 * ranks.number :][:3], []
    load = partial(load_on, ranks, path, scale, autocast="bfloat16", expert_kernels=kernel)
    narrow = load()
    found.append(pass_of(narrow, mine))
    real, sharded.narrow_gathers = sharded.narrow_gathers, lambda dtype: narrow_gathers(None)
    found.append(pass_of(load(), mine))
    sharded.narrow_gathers = real
    return found, types_in_a_pass(narrow)


def apart(found, expected):
    """The worst relative difference of a gradient's tensors, and that of the whole."""
    norm = torch.cat([g.flatten() for g in expected.values()]).norm()
    each = {name: (found[name] - g).norm() / (g.norm() + 1e-3 * norm) for name, g in expected.items()}
    return float(max(each.values())), float(torch.cat([(found[n] - g).flatten() for n, g in expected.items()]).norm() / norm)


@pytest.mark.parametrize(
    "dense, tied, kernel", [(True, True, "auto"), (True, False, "auto"), (False, False, "eager"), (False, False, "auto")]
)
def test_weights_that_autocast_rounds_anyway_change_no_number(model_of, dense, tied, kernel):
    """Experts one by one are linear products, which autocast knows; gspo's kernel rounds what it multiplies itself."""
    path = model_of(dense, tied)
    for (narrow, wide), (types, kept) in together(both, 2, path, ScaleConfig(), kernel):
        assert torch.equal(narrow[0], wide[0])
        assert apart(narrow[1], wide[1])[0] < 2e-7  # an embedding's gradient is added up in another order
        assert kept == {torch.float32}
        half = {name for name, dtype in types.items() if dtype == torch.bfloat16}
        assert half and half == {name for name in types if "_proj" in name}
        assert all(word in " ".join(types.keys() - half) for word in ("norm", "embed", "head"))


@pytest.mark.parametrize(
    "dense, tied, size, scale",
    [
        (True, True, 2, ScaleConfig()),
        pytest.param(False, False, 2, ScaleConfig(), marks=pytest.mark.slow),
        (False, True, 2, ScaleConfig(expert_parallel=2)),
        pytest.param(False, False, 4, ScaleConfig(expert_parallel=2, data_parallel_replicas=2), marks=pytest.mark.slow),
    ],
)
def test_ranks_learn_what_one_process_learns_in_bfloat16(model_of, dense, tied, size, scale):
    path = model_of(dense, tied)
    every = together(in_shards, size, path, scale, CASES, "bfloat16")
    for case, *found in zip(CASES, *every):
        narrow, exact = (alone(path, case, autocast)[1] for autocast in ("bfloat16", "none"))
        (_, overall), (_, rounding) = apart(found[0][1], narrow), apart(narrow, exact)
        assert overall < (2e-3 if dense else 4e-3) and overall < rounding
        assert all(equal(found[0][2], one[2]) for one in found[1:])


def of_kind(kind, **more):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config_of(kind, **more))


def test_which_modules_of_a_layer_stay_wide():
    model = of_kind("qwen3").model
    layer = model.layers[0]
    attention = layer.self_attn
    wide = [layer.input_layernorm, layer.post_attention_layernorm, attention.k_norm, attention.q_norm]
    assert set(float32_modules(layer)) == set(wide)
    assert float32_modules(model.embed_tokens) is None and float32_modules(model.norm) is None
    layer = of_kind("qwen3_moe").model.layers[0]
    assert layer.mlp.gate in float32_modules(layer) and float32_modules(layer.mlp.experts) == []
    # A module that has weights of its own around linear layers: all of its layer stays wide.
    layer.mlp.shared = torch.nn.Parameter(torch.ones(3, device="meta"))
    assert float32_modules(layer) is None


def test_stacked_weights_with_others_beside_them_stay_wide():
    """Autocast rounds none of these: gates of a recurrence with its decay, and biases of experts."""
    layer = of_kind("recurrent_gemma", lru_width=32).model.layers[0]
    assert layer.temporal_block.rg_lru.recurrent_param.ndim == 1 and float32_modules(layer) is None
    layer = of_kind("gpt_oss").model.layers[0]
    assert layer.mlp.experts.down_proj_bias.ndim == 2 and float32_modules(layer.mlp.experts) is None
