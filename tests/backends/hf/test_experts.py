"""The experts' kernel for CPUs against transformers' own, forward and backward."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gspo.backends.hf import experts
from tests.backends.hf.families import FAMILIES, TOKENIZER

GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": len(TOKENIZER),
    "max_position_embeddings": 64,
}  # fmt: skip  # experts with biases and transposed weights, which go transformers' own way


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "olmoe", "gpt_oss"])
@pytest.mark.parametrize("tokens", [1, 3, 60])
def test_hidden_states_and_gradients(family, tokens):
    config = AutoConfig.for_model(**{"vocab_size": len(TOKENIZER), **(FAMILIES | {"gpt_oss": GPT_OSS})[family]})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()  # without router noise
    ids, by_kernel = torch.randint(2, len(TOKENIZER), (1, tokens)), {}
    for kernel in ("grouped_mm", experts.NAME, "eager"):
        model.set_experts_implementation(kernel)
        model.zero_grad()
        logits = model(ids).logits
        logits.log_softmax(-1)[..., 5].sum().backward()
        by_kernel[kernel] = [logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    for kernel in ("grouped_mm", "eager"):
        assert len(by_kernel[kernel]) == len(by_kernel[experts.NAME])
        for ours, theirs in zip(by_kernel[experts.NAME], by_kernel[kernel]):
            assert torch.allclose(ours, theirs, atol=1e-6 + 1e-5 * float(theirs.abs().max()))


def test_bfloat16_weights_and_float32_activations():
    config = AutoConfig.for_model(**{"vocab_size": len(TOKENIZER), **FAMILIES["qwen3_moe"]})
    block = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).model.layers[0].mlp.experts
    x, weights = torch.randn(9, 32), torch.rand(9, 2)
    chosen = torch.rand(9, 4).topk(2).indices
    block.config._experts_implementation = "grouped_mm"
    theirs = block(x, chosen, weights)
    block.config._experts_implementation = experts.NAME
    assert torch.equal(block(x, chosen, weights), theirs) and theirs.dtype == torch.float32
