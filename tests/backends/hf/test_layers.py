"""What travels to an engine layer by layer is what its Hugging Face folder holds."""

import pytest
import torch

from gspo.backends.hf.layers import Layers
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import ModelConfig
from gspo.config.scale import ScaleConfig
from tests.backends.hf.families import FAMILIES, TOKENIZER, tiny
from tests.backends.hf.folders import load_on, weights_in
from tests.together import together


def all_of(layers):
    """Every tensor of all layers. None comes twice."""
    found = {}
    for layer in layers:
        assert not found.keys() & layer.keys()
        found |= layer
    return found


def same(a, b):
    return a.keys() == b.keys() and all(a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_what_the_folder_holds(family, tmp_path):
    """Stacked experts apart, a tied head left out, in many families."""
    model = tiny(family)
    model.save(tmp_path, merged=True)
    assert same(all_of(model.layers()), weights_in(tmp_path))


def test_each_layer_comes_by_itself():
    model = tiny("qwen3_moe")
    layers = list(model.layers())
    numbers = [{name.split("layers.")[1].split(".")[0] for name in layer if "layers." in name} for layer in layers]
    assert [n for n in numbers if n] == [{"0"}, {"1"}]
    assert sum("experts.3.down_proj" in name for name in layers[numbers.index({"0"})]) == 1


def test_matrices_travel_in_the_type_of_the_matrix_products():
    """Routers and norms stay as they are trained, as ranks write them for an engine."""
    model = build_tiny(FAMILIES["qwen3_moe"], TOKENIZER, 0, ModelConfig(device="cpu", autocast="bfloat16"))
    every = all_of(model.layers())
    wide = {name for name, x in every.items() if x.dtype == torch.float32}
    assert wide == {name for name, x in every.items() if x.ndim == 1 or "mlp.gate.weight" in name} and len(wide) < len(every)
    weights = dict(model.named_parameters())
    assert set(Layers(model.model, weights, None).types.values()) == {torch.float32}


def test_matrices_of_a_recurrence_stay_as_they_are():
    """vLLM holds Mamba's A in float32."""
    model = build_tiny(FAMILIES["mamba"], TOKENIZER, 0, ModelConfig(device="cpu", autocast="bfloat16"))
    every = all_of(model.layers())
    wide = {name.rsplit(".", 1)[-1] for name, x in every.items() if x.dtype == torch.float32 and x.ndim > 1}
    assert wide == {"A_log"} and sum(x.dtype == torch.bfloat16 for x in every.values()) > 5


def given(ranks, path, scale, folder):
    """The leader's layers of a model in shards, beside the files that the ranks write for an engine."""
    model = load_on(ranks, path, scale)
    layers = all_of(model.layers())
    model.save(folder, merged=True)
    if ranks.number:
        assert not layers
    else:
        assert same(layers, weights_in(folder)) and len(layers) > 20


@pytest.mark.parametrize("experts", [1, 2])
def test_the_leader_of_two_ranks_gets_the_same(model_of, tmp_path, experts):
    together(given, 2, model_of(False, False), ScaleConfig(expert_parallel=experts), tmp_path / "written")
