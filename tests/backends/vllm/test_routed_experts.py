"""vLLM's arrays of experts become routes, and what cannot be some is refused."""

import base64

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Glm4MoeConfig

from gspo.backends.hf.load import wrap_model
from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.request import Request
from gspo.backends.vllm.routed_experts import Routers
from gspo.config.policy import ModelConfig
from gspo.types import Prompt, Rollout, Sampling
from tests.backends.vllm.tools import choice, sent
from tests.tiny_run import PIECES


def test_routers_of_a_model():
    tokenizer = longest_match_tokenizer(PIECES)
    assert Routers.of(HFPolicy(build_tiny(tiny_qwen3_moe(layers=3, experts=6), tokenizer))) == Routers((0, 1, 2), 2, 6)
    dense = {name: value for name, value in tiny_qwen3_moe().items() if "expert" not in name and "topk" not in name}
    assert Routers.of(HFPolicy(build_tiny(dense | {"model_type": "qwen3"}, tokenizer))) is None


def test_dense_layers_of_a_mixture_have_no_routes():
    config = Glm4MoeConfig(
        vocab_size=len(PIECES) + 8, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1,
        max_position_embeddings=64,
    )  # fmt: skip
    tokenizer = longest_match_tokenizer(PIECES)
    model = wrap_model(AutoModelForCausalLM.from_config(config), tokenizer, ModelConfig(device="cpu"))
    routers = Routers.of(HFPolicy(model))
    assert routers == Routers((1, 2), 2, 4)
    array = np.arange(24, dtype=np.uint8).reshape(4, 3, 2) % 4
    assert routers.read(sent(array), 4).equal(torch.from_numpy(array[:, 1:].astype(np.int16)))


def completion(routers):
    sampling = Sampling(8, 1.0, routes=True, stop_ids=(1,))
    return Request(Rollout.begun(Prompt("0", "", (2, 3, 4))), 7, sampling, longest_match_tokenizer(PIECES), 20, routers)


def answer(tokens, experts, reason="length"):
    made = choice(tokens, [-1.0] * len(tokens), reason, "0")
    return {"choices": [made | {"routed_experts": None if experts is None else sent(experts)}]}


def test_parts_keep_the_experts_of_their_time():
    request = completion(Routers((0, 1), 2, 9))
    assert request.request()["sampling_params"]["routed_experts_prompt_start"] == 0
    request.add(answer([5, 6], np.full((4, 2, 2), 1, np.uint8), "abort"), 0, 0)
    assert request.so_far.routes[:, 0, 0].tolist() == [1, 1, 1, 1, -1]
    assert request.request()["sampling_params"]["routed_experts_prompt_start"] == 4
    request.add(answer([7], np.full((1, 2, 2), 2, np.uint8), "length"), 0, 0)
    assert request.so_far.routes[:, 1, 1].tolist() == [1, 1, 1, 1, 2, -1]


def test_the_experts_of_a_part_that_does_not_tell_them_stay_unknown():
    """What the next part would tell of those tokens are the choices of other weights."""
    request = completion(Routers((0, 1), 2, 9))
    request.add(answer([5, 6], None, "abort"), 0, 0)
    assert request.so_far.routes.shape == (5, 2, 2) and int(request.so_far.routes.max()) == -1
    assert request.request()["sampling_params"]["routed_experts_prompt_start"] == 4
    request.add(answer([7], np.full((1, 2, 2), 2, np.uint8)), 0, 0)
    assert request.so_far.routes[:, 1, 1].tolist() == [-1, -1, -1, -1, 2, -1]


def test_a_part_in_which_nothing_was_sampled_asks_from_the_start_again():
    request = completion(Routers((0, 1), 2, 9))
    request.add(answer([], None, "abort"), 0, 0, interrupted=True)
    assert request.request()["sampling_params"]["routed_experts_prompt_start"] == 0


def test_experts_that_cannot_be_are_refused(subtests):
    for experts, message in (
        (np.zeros((3, 2, 2), np.uint8), r"experts of shape \[3, 2, 2\] for 4 tokens"),
        (np.zeros((4, 2, 3), np.uint8), r"k = 2"),
        (np.full((4, 2, 2), 9, np.uint8), "experts outside of 0 to 8"),
        (np.full((4, 2, 2), -1, np.int8), "experts outside of 0 to 8"),
    ):
        with subtests.test(message), pytest.raises(EngineError, match=message):
            completion(Routers((0, 1), 2, 9)).add(answer([5, 6], experts), 0, 0)
    for garbage in ("no base64 of anything", 7, base64.b64encode(b"PK\x03\x04 an archive").decode()):
        with subtests.test(garbage), pytest.raises(ValueError, match="experts that cannot be read"):
            Routers((0,), 1, 2).read(garbage, 1)
