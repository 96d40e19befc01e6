"""A real engine that samples while weights change."""

import json

import pytest
import torch

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer
from gspo.learner import layout
from gspo.types import Completion
from tests.backends.vllm.engine.servers import ENGINE_ARGS, MOE, PYTHON, interrupt, policy_of, served
from tests.tiny_run import PIECES, ROWS, likes_a, settings


def test_interrupted_completions_hold_the_likelihoods_of_the_weights_of_their_time():
    policy = policy_of("moe")
    with served(policy, batch_size=4) as sampler:  # few at once, so that updates meet many of them
        rollouts, models = interrupt(sampler, policy, 0.02)
    assert all(int(r.sampled.sum()) == 90 and r.stop == "length" for r in rollouts)
    mu = torch.cat([r.logp[r.sampled] for r in rollouts])
    version = torch.cat([r.version[r.sampled] for r in rollouts])
    batch = layout.build([Completion(r.tokens, r.sampled, r.logp[r.sampled], r.logp[r.sampled], 0.0) for r in rollouts])
    for v, weights in models.items():
        policy.model.model.load_state_dict(weights)
        with torch.no_grad():
            gap = (policy.forward(batch).logp - mu).abs()
        here = version == v
        print(json.dumps({"version": v, "tokens": int(here.sum()), "max gap": float(gap[here].max()) if here.any() else 0.0,
                          "mean gap to the others": float(gap[~here].mean())}))  # fmt: skip
        assert not here.any() or float(gap[here].max()) < 1e-4
        assert float(gap[~here].mean()) > 1e-2


def train(folder, k, steps, resume=False):
    tiny = build_tiny(MOE, longest_match_tokenizer(PIECES))
    config = settings(
        folder, sampler={"engine": "vllm", "python": PYTHON, "engine_args": ENGINE_ARGS}, train={"steps": steps},
        rollout={"max_staleness": k, "max_completion_length": 60}, eval={"every": 0},
    )  # fmt: skip
    return gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=config, resume=resume)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2])
def test_a_run_that_samples_ahead_loses_no_prompt(tmp_path, k):
    folder = train(tmp_path / "run", k, steps=6).folder
    train(tmp_path / "run", k, steps=10, resume=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert all(line["staleness"] <= k and line["mismatch/kl"] < 1e-8 for line in lines)
    assert sum(line["staleness"] for line in lines) > 1 and lines[-1]["reward"] > lines[0]["reward"]
    rollouts = [json.loads(line) for line in (folder / "rollouts.jsonl").read_text().splitlines()]
    ids = [rollout["prompt_id"] for rollout in rollouts][::4]
    assert len(ids) == 80 and len(set(ids[:36])) == 36 and sorted(ids[:36]) == sorted(ids[36:72])  # 36 train, 4 held out
