"""A sampler of a scripted engine, and what that answers."""

import base64
import io

import numpy as np

from gspo.backends.vllm.sampler import VLLMSampler
from gspo.backends.vllm.server import Server
from gspo.types import Prompt
from tests.tiny_run import model


def choice(tokens=(5, 6, 1), logp=(-0.5, -1.0, -2.0), reason="stop", version="3"):
    """A completion as vLLM's server words it."""
    return {
        "token_ids": list(tokens),
        "logprobs": {"content": [{"token_id": t, "logprob": p} for t, p in zip(tokens, logp)]},
        "finish_reason": reason,
        "weight_versions": [{"version": version, "start": 0, "end": len(tokens)}],
    }


def sampler_of(engine, tmp_path, **options):
    made = VLLMSampler(model(), [Server(engine.url)], tmp_path, 1.0, **options)
    made.version = 3
    (member,) = made.fleet.members
    made.fleet.admit(member, member.generation)  # as if it had proven its weights
    return made


PROMPTS = [Prompt("a", "", (2, 3, 4)), Prompt("b", "", (7, 8))]


def part(*tokens, reason="abort", version="3"):
    return 200, {"choices": [choice(tokens, [-1.0] * len(tokens), reason, version)]}


def sent(array):
    """An array of experts as vLLM sends it."""
    with io.BytesIO() as file:
        np.save(file, array)
        return base64.b64encode(file.getvalue()).decode()
