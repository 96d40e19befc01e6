"""A model's head, its files, and what ends a completion."""

import pytest
import torch

from gspo.backends.hf.load import wrap_model
from gspo.config.policy import ModelConfig
from tests.backends.hf.families import TOKENIZER, tiny
from tests.backends.hf.folders import load


@pytest.mark.parametrize("key", ["dtype", "autocast"])
def test_the_head_is_float32(key):
    wrapped = wrap_model(tiny("llama").model, TOKENIZER, ModelConfig(device="cpu", **{key: "bfloat16"}))
    hidden = wrapped.hidden(input_ids=torch.randint(2, 40, (1, 5)))
    assert wrapped.compute_dtype == torch.bfloat16 and (hidden.dtype == torch.bfloat16) == (key == "dtype")
    exact = hidden.double() @ wrapped.model.lm_head.weight.double().T
    with wrapped.precision():
        logits = wrapped.logits(hidden)
    assert logits.dtype == torch.float32 and torch.allclose(logits.double(), exact, rtol=1e-5, atol=1e-5)


def test_save_and_load(saved):
    wrapped, again = tiny("qwen3_moe"), load(saved)
    tokens = torch.randint(2, 40, (1, 9))
    assert torch.equal(wrapped.hidden(input_ids=tokens), again.hidden(input_ids=tokens))
    assert again.tokenizer.get_vocab() == TOKENIZER.get_vocab()
    assert again.stop_ids == wrapped.stop_ids == (1,) and again.pad_id == 0 and again.context_length == 256
    assert load(saved, attention="eager").has_full_attention  # masks of a tree are turned into those of eager attention


def test_stop_ids_join_generation_config_and_tokenizer():
    wrapped = tiny("llama")
    wrapped.model.generation_config.eos_token_id = [7, 1]
    assert wrapped.stop_ids == (7, 1)
