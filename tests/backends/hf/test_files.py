import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from gspo.backends.hf.load import load_model
from gspo.backends.hf.tiny import build_tiny
from gspo.config.policy import ModelConfig
from tests.backends.hf.families import FAMILIES, TOKENIZER, tiny
from tests.backends.hf.folders import copy, load


@pytest.mark.parametrize("by_layer", [False, True])
def test_rotary_embeddings_that_change_with_the_row_bound_the_context(by_layer):
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope["original_max_position_embeddings"] = 32
    made = tiny("llama")
    assert made.context_length == 256
    made.config.rope_parameters = {"full_attention": rope} if by_layer else rope
    assert made.context_length == 32
    made.config.rope_parameters = rope | {"rope_type": "yarn"}  # one for rows of all lengths
    assert made.context_length == 256


def test_keys_that_are_chosen_by_the_row_bound_the_context():
    made = build_tiny(FAMILIES["llama"] | {"model_type": "doge", "keep_window_size": 8}, TOKENIZER)
    assert made.context_length == 8 and not made.has_full_attention
    tokens = torch.arange(2, 10)[None]
    torch.testing.assert_close(made.hidden(input_ids=tokens)[:, :5], made.hidden(input_ids=tokens[:, :5]))


def test_bad_folders_and_paths(saved, tmp_path, subtests):
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "config.json").write_text("{}")
    for without, fields, message in (  # others are in tests/test_bad_input.py
        (["config.json"], {}, "has no config.json"),
        ([], {"device": "cuda:9"}, "model.device = 'cuda:9': this machine has"),
        ([], {"attention": "flash_attention_2"}, "model.attention = 'flash_attention_2': Flash"),
        ([], {"path": str(tmp_path / "run")}, rf"has no config.json, .*: give {tmp_path / 'run' / 'model'}$"),
        ([], {"path": "a/b/c"}, "model.path = 'a/b/c': no such folder"),
        ([], {"path": __file__}, "this is a file; give the folder"),
    ):
        with subtests.test(message=message), pytest.raises(ValueError, match=message):
            folder = copy(saved, tmp_path, without)
            load_model(ModelConfig(**{"path": str(folder), "device": "cpu", **fields}))


def test_remote_code(saved, tmp_path):
    folder = copy(saved, tmp_path)
    config = {"model_type": "brand_new", "auto_map": {"AutoConfig": "new.C", "AutoModelForCausalLM": "new.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "new.py").write_text("raise SystemExit('this code must not run')")
    with pytest.raises(ValueError, match=r"its own Python code.*model.trust_remote_code = true"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "eos", "message"),
    [("config", "<eos>", "'eos_token_id' with value '<eos>' .* a token is given by its id, a number"),
     ("generation_config", [1, "<eos>"], r"eos_token_id = \[1, '<eos>'\]: .* correct the model's generation_config")],
)  # fmt: skip
def test_stop_tokens_that_are_no_numbers(saved, tmp_path, file, eos, message):
    path = copy(saved, tmp_path) / f"{file}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": eos}))
    with pytest.raises(ValueError, match=message):
        load(path.parent)


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [("model.embed_tokens.weight", math.nan, "nan"), ("model.layers.1.mlp.gate.weight", math.inf, "inf"),
     ("model.norm.weight", -math.inf, "inf")],
)  # fmt: skip
def test_weights_that_are_no_numbers_are_named(saved, tmp_path, name, value, word):
    """Also one that no trial of the model reads."""
    path = copy(saved, tmp_path) / "model.safetensors"
    weights = load_file(path)
    weights[name].view(-1)[-1] = value
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(ValueError, match=f"the weights of Qwen3MoeForCausalLM hold {word} in {name}"):
        load(path.parent)
