"""A real engine that samples while weights change."""

import pytest

from tests.backends.vllm.engine.servers import lines, train


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
