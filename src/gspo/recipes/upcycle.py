"""Makes a mixture of experts of a dense Llama model: python -m gspo.recipes.upcycle DENSE OUT [--experts 4] [--noise 0.1].

Each MLP is copied into all experts of its layer, so that without noise the mixture (Mixtral, top-2, weights that sum to 1)
computes what the dense model does, whatever its new routers choose. The noise makes the experts differ.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig, MixtralForCausalLM, PreTrainedModel

KEPT = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "tie_word_embeddings",
        "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range")  # fmt: skip


def upcycled(dense: PreTrainedModel, experts: int, noise: float, seed: int = 0) -> MixtralForCausalLM:
    """The mixture. noise: its standard deviation in units of that of the matrix that it is added to."""
    torch.manual_seed(seed)
    config = MixtralConfig(
        num_local_experts=experts, num_experts_per_tok=2, **{key: getattr(dense.config, key) for key in KEPT}
    )
    mixture = MixtralForCausalLM(config)
    mixture.load_state_dict(
        {name: weight for name, weight in dense.state_dict().items() if ".mlp." not in name}, strict=False
    )

    def copies(weight: Tensor) -> Tensor:
        return weight + noise * weight.std() * torch.randn(experts, *weight.shape)

    with torch.no_grad():
        for new, old in zip(mixture.model.layers, dense.model.layers):
            new.mlp.experts.gate_up_proj.copy_(copies(torch.cat([old.mlp.gate_proj.weight, old.mlp.up_proj.weight])))
            new.mlp.experts.down_proj.copy_(copies(old.mlp.down_proj.weight))
    return mixture


def main() -> None:
    """Reads the command line, and writes the mixture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dense", help="folder of a Llama model")
    parser.add_argument("out", help="folder to write")
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--noise", type=float, default=0.1)
    given = parser.parse_args()
    dense = AutoModelForCausalLM.from_pretrained(given.dense, dtype=torch.float32)
    mixture = upcycled(dense, given.experts, given.noise)
    tokenizer = AutoTokenizer.from_pretrained(given.dense)
    question = [{"role": "user", "content": "How many legs have three cats?"}]
    text: Any = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        change = (mixture(**text).logits - dense(**text).logits).abs().max()
    mixture.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)
    print(f"{mixture.num_parameters() / 1e6:.0f} million weights; the logits changed by at most {change:.2g}")


if __name__ == "__main__":
    main()
