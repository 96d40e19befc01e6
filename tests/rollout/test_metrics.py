"""What a batch of rollouts tells, by hand."""

import dataclasses
import json
import math

import pytest
import torch

from gspo.rollout.metrics import batch_metrics, describe, in_parts, repetition, reward_noise, sampled_metrics, staleness
from gspo.runs.log import to_json
from gspo.types import Group, Prompt, Rollout


def rollout(versions, reward=1.0, stop="eos", tokens=None, **parts):
    tokens = [1, 2, *(tokens or range(5, 5 + len(versions)))]
    version = torch.tensor([-1, -1, *versions])
    sampled = version >= 0
    logp = torch.where(sampled, -0.5, 0.0)
    return Rollout(Prompt("p", "q", (1, 2)), torch.tensor(tokens), sampled, logp, version, stop, "text", reward, parts)


def test_repetition_counts_what_stood_before():
    assert repetition([1, 2, 3]) == 0 and repetition([1, 2, 3, 4]) == 0
    assert repetition([1, 1, 1, 1, 1, 1]) == pytest.approx(2 / 3)  # three 4-grams, all the same
    assert repetition([1, 2, 1, 2, 1, 2], n=2) == pytest.approx(3 / 5)


def test_means_over_scored_rollouts_and_lengths_of_all():
    batch = [rollout([0, 0], 1.0, f=1.0), rollout([0] * 4, None, stop="length"), rollout([0, 0, 0], 0.0, f=0.5, g=2.0)]
    metrics = batch_metrics(batch)
    assert (metrics["reward"], metrics["reward/f"], metrics["reward/g"]) == (0.5, 0.75, 2.0)
    assert (metrics["completions/mean_length"], metrics["tokens"]) == (3.0, 9)
    assert metrics["completions/clipped_ratio"] == pytest.approx(1 / 3)
    assert sampled_metrics([Group(batch[0].prompt, batch)])["rollouts/failed"] == 1
    assert math.isnan(batch_metrics([rollout([0], None)])["reward"])


def test_the_noise_of_the_reward_by_hand():
    noise = reward_noise([[1.0, 0.0], [1.0, 1.0], [], [-1.0, 0.0]])
    assert noise["reward_min"] == -1
    assert noise["reward_std_batch"] == pytest.approx(math.sqrt((3 * (2 / 3) ** 2 + 2 / 9 + 16 / 9) / 6))
    # Means .5, 1, -.5 of equally large groups: their standard deviation over the root of 3.
    assert noise["reward_se"] == pytest.approx(torch.tensor([0.5, 1.0, -0.5]).std().item() / math.sqrt(3))
    assert all(math.isnan(value) for value in reward_noise([[], []]).values())
    assert math.isnan(reward_noise([[1.0, 2.0]])["reward_se"])  # one prompt


def test_the_standard_error_is_that_of_the_mean_over_random_groups():
    rng = torch.Generator().manual_seed(0)
    means, errors = [], []
    for _ in range(2000):
        sizes = torch.randint(1, 9, (16,), generator=rng).tolist()  # some completions have no reward
        groups = [(torch.randn(1, generator=rng) + torch.randn(n, generator=rng)).tolist() for n in sizes]
        means.append(sum(map(sum, groups)) / sum(sizes))
        errors.append(reward_noise(groups)["reward_se"] ** 2)
    assert sum(errors) / len(errors) == pytest.approx(torch.tensor(means).var().item(), rel=0.1)


def test_age_is_counted_by_token_and_parts_by_completion():
    batch = [rollout([3, 3, 4, 4]), rollout([4, 4])]
    assert staleness(batch, 5) == pytest.approx((2 * 2 + 4 * 1) / 6)
    assert in_parts(batch) == 0.5 and in_parts([]) == 0


def test_a_line_says_what_was_sampled_and_by_which_weights():
    line = describe(rollout([3, 4], 0.5, f=0.5), "answer")
    assert (line["token_ids"], line["version"], line["completion"], line["reward"]) == ([5, 6], 4, "text", 0.5)
    assert "dialogue" not in line and "answer" not in line
    spoken = dataclasses.replace(rollout([3]), dialogue=({"role": "user", "content": "hi"},))
    assert describe(spoken, "answer")["dialogue"] == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("answer", "line"), [("6", "6"), (6.5, 6.5), (["a", 1], "['a', 1]"), (torch.Size([2]), "torch.Size([2])")]
)
def test_a_line_has_the_right_answer_of_its_row(answer, line):
    made = rollout([3])
    made = dataclasses.replace(made, prompt=dataclasses.replace(made.prompt, columns={"gold": answer, "answer": "no"}))
    assert json.loads(to_json(describe(made, "gold")))["answer"] == line
