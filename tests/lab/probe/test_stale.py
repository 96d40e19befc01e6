"""A batch that grows old: what is read of it, by hand, on a policy of one table."""

import pytest
import torch
from probe.candidates import Candidate
from probe.stale import PLAIN, Reader, Stale

from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig
from gspo.learner.memory import MicroBatches
from gspo.types import Group
from tests.bigram import Bigram
from tests.rollout.test_credit import prompt, rollout

GSPO = resolve(AlgorithmConfig())[1]


def stale(*rewards, policy=None):
    groups = [
        Group(prompt(str(i)), [rollout(reward, n=2 + j) for j, reward in enumerate(row)]) for i, row in enumerate(rewards)
    ]
    policy = policy or Bigram()
    return policy, Stale(Reader(policy, MicroBatches(100), False), groups, GSPO)


def test_pi_old_is_that_of_age_0_and_the_sampler_what_it_said():
    policy, batch = stale((1.0, 0.0), (0.0, 1.0))
    before = torch.cat([policy.logp_of(completion) for completion in batch.completions])
    torch.testing.assert_close(batch.old["recompute", PLAIN], before)
    assert (batch.old["sampler", PLAIN] == -0.5).all()
    torch.testing.assert_close(batch.again[PLAIN], before)  # the same, of other micro-batches
    with torch.no_grad():
        policy.table += torch.randn(policy.table.shape, generator=torch.Generator().manual_seed(1))
    now = torch.cat([policy.logp_of(completion) for completion in batch.completions])
    torch.testing.assert_close(batch.logp(PLAIN), now)
    assert not torch.allclose(now, before)
    ratios = batch.ratios(Candidate("x", GSPO, "recompute"), batch.logp(PLAIN))
    expected = [part.mean().exp() for part in (now - before).split([2, 3, 2, 3])]
    torch.testing.assert_close(ratios, torch.stack(expected))


def test_a_view_has_its_own_advantages_and_likelihoods():
    _, batch = stale((1.0, None, 0.0), (0.0, 1.0, 1.0))
    plain = resolve(AlgorithmConfig(name="grpo", scale_rewards="none"))[1]
    rows = batch.view(Candidate("x", plain, "recompute"))
    assert [[round(c.advantage, 6) for c in row] for row in rows] == [[0.5, -0.5], [-0.666667, 0.333333, 0.333333]]
    old = torch.cat([completion.logp_old for row in rows for completion in row])
    torch.testing.assert_close(old, batch.old["recompute", PLAIN])
    sampled = batch.view(Candidate("y", GSPO, "sampler"))
    assert all((completion.logp_old == -0.5).all() for row in sampled for completion in row)
    assert sampled[0][0].advantage == pytest.approx(2**-0.5)
