"""The policy scores what the sampler sampled, whatever the layout."""

import dataclasses
from functools import cache

import pytest
import torch

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.sampler import HFSampler
from gspo.config.algorithm import resolve
from gspo.config.policy import AlgorithmConfig, ResolvedOptimizer
from gspo.learner import layout
from gspo.learner.memory import MicroBatches
from gspo.learner.objective import PolicyObjective
from gspo.learner.optimizer import Optimizer
from gspo.learner.update import Updater
from gspo.types import Completion, Prompt, Sampling
from tests.adding import AsTheyCome
from tests.backends.hf.families import FAMILIES, FULL_ATTENTION, tiny

family = cache(tiny)


def completions(model, temperature=1.0):
    """Three of each of three prompts, as sampled."""
    prompts = [Prompt(str(i), "", tuple(range(5, 5 + size))) for i, size in enumerate((4, 9, 1))]
    sampling = Sampling(7, temperature, stop_ids=model.stop_ids, seed=3)
    sampled = [(r, r.logp[r.sampled]) for r in HFSampler(model, 8).generate(prompts, 3, sampling)]
    return [Completion(r.tokens, r.sampled, mu, mu, 1.0) for r, mu in sampled]


def scored(policy, batch, seed=0):
    """Log-probabilities, entropies, and the gradient of a fixed random sum of log-probabilities."""
    weights = torch.rand(len(batch.node), generator=torch.Generator().manual_seed(seed))
    for p in policy.parameters():
        p.grad = None
    logp, entropy, *_ = policy.forward(batch, entropy=True)
    (logp * weights).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    return logp.detach(), entropy, gradient


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampler_and_policy_agree(name, temperature):
    model = family(name)
    batch = layout.build(completions(model, temperature=temperature))
    logp = HFPolicy(model, temperature).forward(batch).logp
    assert float((logp.detach() - batch.logp_mu).abs().max()) < 1e-5


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", [*sorted(FULL_ATTENTION), "gemma3"])
def test_layouts_agree_in_value_and_gradient(name, checkpointing, monkeypatch):
    # So that even short prompts are put together with their completions.
    monkeypatch.setattr("gspo.backends.hf.tree_segments.MERGE", 0.01)
    batch = completions(family(name))  # prompts of 4, 9 and 1 tokens, of which windows of 8 hide some
    plain = scored(HFPolicy(family(name)), layout.build(batch))
    policy = HFPolicy(family(name), layout="shared", gradient_checkpointing=checkpointing)
    for share in (False, True):
        for actual, expected in zip(scored(policy, layout.build(batch, share)), plain):
            assert float((actual - expected).abs().max()) < 2e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", FAMILIES)
def test_an_update_adds_up_in_one_order_whatever_the_machine_does(name):
    for layout_ in ("auto", "padded", *(["shared"] if name in FULL_ATTENTION else [])):
        policy = HFPolicy(tiny(name), layout=layout_)
        optimizer = Optimizer(policy.parameters(), ResolvedOptimizer(), 10, 0)
        z = torch.full((6,), -3.0)
        every = [dataclasses.replace(c, logp_ref=c.logp_old - 0.1) for c in completions(policy.model)]
        plain = dataclasses.replace(every[0], logp_mu=z, logp_old=z, logp_ref=z)
        rows = (torch.tensor([5, *range(a, a + 6)]) for a in (6, 13, 20))  # `auto` shares the 5, and pads all the same
        short = [dataclasses.replace(plain, tokens=row, sampled=row != 5) for row in rows]
        assert not layout.worth_sharing(layout.build(short, True).forest)
        with AsTheyCome() as seen:
            for batch in (every, short):
                objective = PolicyObjective(*resolve(AlgorithmConfig(beta=0.1))[:2], 9)
                Updater(policy, optimizer, MicroBatches(10_000)).update(objective, batch)
        assert not seen.loose and not seen.races
        assert not seen.sums or name not in ("qwen3_moe", "qwen3", "llama"), "slow, though ordered"
