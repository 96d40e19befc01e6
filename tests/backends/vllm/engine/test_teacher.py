"""A real vLLM server as the teacher of on-policy distillation."""

from contextlib import closing
from dataclasses import replace

import httpx
import pytest
import torch

from gspo.backends.hf.tiny import longest_match_tokenizer
from gspo.config.policy import TeacherConfig
from gspo.interfaces import TeacherFailed
from gspo.learner.memory import MicroBatches
from gspo.learner.scoring import read
from gspo.rewards.teacher_endpoint import TeacherEndpoint
from gspo.rollout.credit import completion_of
from gspo.types import Prompt, Rollout, Sampling
from tests.backends.vllm.engine.servers import ENGINE_ARGS, policy_of, prompts, served
from tests.tiny_run import PIECES


def test_its_log_probabilities_are_those_of_the_model_here(monkeypatch):
    policy, most = policy_of("dense"), ENGINE_ARGS["max_model_len"]
    with served(policy) as sampler:
        url, headers = f"{sampler.server.url}/v1", sampler.server.headers
        (card,) = httpx.get(f"{url}/models", headers=headers, timeout=60).json()["data"]
        monkeypatch.setenv("TEACHER_KEY", headers["Authorization"].removeprefix("Bearer "))
        config = TeacherConfig(path=card["id"], url=url, key_variable="TEACHER_KEY", retries=0)
        with closing(TeacherEndpoint(config)) as teacher:
            teacher.check(policy.model.tokenizer, most)
            with pytest.raises(ValueError, match="another vocabulary"):
                teacher.check(longest_match_tokenizer(PIECES[::-1]), most)
            with pytest.raises(ValueError, match=f"its max_model_len is {most}, but this run needs {most + 1}"):
                teacher.check(policy.model.tokenizer, most + 1)
            with (
                pytest.raises(ValueError, match=r"it serves .*: name one of them as teacher.path"),
                closing(TeacherEndpoint(replace(config, path="other"))) as other,
            ):
                other.check(policy.model.tokenizer, most)
            for ids in ([2] * most, [2, len(policy.model.tokenizer)]):
                begun = Rollout.begun(Prompt("0", "", tuple(ids)))
                begun.sampled[-1] = True
                with pytest.raises(TeacherFailed, match="HTTP 400"):
                    teacher.read([replace(begun, reward=0.0)])
            sampled = sampler.generate(prompts(), 2, Sampling(24, seed=1, stop_ids=(1,)))
            taught = teacher.read([replace(rollout, reward=0.0) for rollout in sampled])
    completions = [completion_of(rollout, 0.0) for rollout in taught]
    for completion, reading in zip(completions, read(policy, completions, MicroBatches(4096))):
        torch.testing.assert_close(completion.logp_teacher, reading.logp, rtol=0, atol=4e-5)
