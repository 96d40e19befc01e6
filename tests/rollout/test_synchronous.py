import dataclasses
from pathlib import Path

import numpy as np
import torch

from gspo.config.rollout import RolloutConfig
from gspo.data.refresh import Pool
from gspo.rollout.asynchronous import plain, restored
from gspo.rollout.stages import TASK, Curriculum
from gspo.rollout.synchronous import SynchronousSource
from gspo.types import Sampling
from tests.rollout.test_credit import prompt, rollout


class Stream(Curriculum):
    """The prompts 0, 1, 2 ..."""

    def __init__(self):
        super().__init__([Pool(TASK, [prompt("0")], 0)])

    def take(self, k, step):
        self.position += k
        return [prompt(str(self.position - k + i)) for i in range(k)]


class Echo:
    """A sampler that records how it was asked."""

    version, probes = 0, []

    def __init__(self):
        self.asked = []

    def generate(self, prompts, n, sampling, progress=None):
        self.asked.append((len(prompts), n, sampling.seed, self.version))
        return [rollout(None, who=p) for p in prompts for _ in range(n)]


class Ones:
    """A reward of 1 for each."""

    groups = None

    def score(self, rollouts, progress=None, groups=None):
        self.groups = groups
        return [dataclasses.replace(rollout, reward=1.0) for rollout in rollouts]

    def counts(self):
        return {}


def test_the_source_samples_a_batch_when_its_first_group_is_asked_for():
    sampler, stream, config = Echo(), Stream(), RolloutConfig(num_prompts=2, num_generations=3)
    groups = iter(SynchronousSource(stream, sampler, Ones(), config, Sampling(5, seed=7)))
    first = [next(groups), next(groups)]
    assert [g.prompt.id for g in first] == ["0", "1"]
    assert [len(g.rollouts) for g in first] == [3, 3]
    assert stream.position == 2
    sampler.version = 1
    next(groups)
    assert [a[0] for a in sampler.asked] == [2, 2]
    assert sampler.asked[0][2] != sampler.asked[1][2]  # another batch, another seed
    assert sampler.asked[1][3] == 1


def test_a_saved_rollout_is_in_plain_types_and_comes_back_whole(tmp_path):
    """A checkpoint is read with weights_only; what an environment says may be anything, and so may what was read first."""
    row = prompt("0")
    read = dataclasses.replace(row, tokens=(4, 4, 4))
    spoken = ({"role": "user", "content": np.str_("hi"), "reward": np.float64(2)}, {"role": "tool", "content": Path("x")})
    saved = dataclasses.replace(rollout(1.0, who=read), dialogue=spoken, turn_rewards=(0.5, 0.5))
    torch.save(plain(saved), tmp_path / "state.pt")
    again = restored(row, torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.prompt == read
    assert again.dialogue == ({"role": "user", "content": "hi", "reward": 2.0}, {"role": "tool", "content": "x"})
    assert type(again.dialogue[0]["content"]) is str and type(again.dialogue[0]["reward"]) is float
    assert torch.equal(again.tokens, saved.tokens) and again.turn_rewards == (0.5, 0.5) and again.reward == 1.0
