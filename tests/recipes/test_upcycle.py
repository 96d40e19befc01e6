"""A mixture of experts made of a dense model."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gspo.recipes.upcycle import upcycled


def test_without_noise_the_mixture_is_the_dense_model():
    torch.manual_seed(0)
    size = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    dense = LlamaForCausalLM(LlamaConfig(**size)).eval()
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        logits = {noise: upcycled(dense, 4, noise).eval()(tokens).logits for noise in (0, 0.1)}
        torch.testing.assert_close(logits[0], dense(tokens).logits)
        assert (logits[0.1] - logits[0]).abs().max() > 1e-4
