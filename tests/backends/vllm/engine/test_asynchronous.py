"""A real engine that samples while weights change."""

import json

import pytest
import torch

from gspo.learner import layout
from gspo.types import Completion
from tests.backends.vllm.engine.servers import interrupt, lines, policy_of, served, train


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


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2])
def test_a_run_that_samples_ahead_loses_no_prompt(tmp_path, k):
    sections = {"rollout": {"max_staleness": k, "max_completion_length": 60}, "eval": {"every": 0}}
    folder = train(tmp_path / "run", train={"steps": 6}, **sections).folder
    train(tmp_path / "run", train={"steps": 10}, resume=True, **sections)
    metrics = lines(folder)
    assert [line["step"] for line in metrics] == list(range(1, 11))
    assert all(line["staleness"] <= k and line["mismatch/kl"] < 1e-8 for line in metrics)
    assert sum(line["staleness"] for line in metrics) > 1 and metrics[-1]["reward"] > metrics[0]["reward"]
    ids = [rollout["prompt_id"] for rollout in lines(folder, "rollouts")][::4]
    assert len(ids) == 80 and len(set(ids[:36])) == 36 and sorted(ids[:36]) == sorted(ids[36:72])  # 36 train, 4 held out
