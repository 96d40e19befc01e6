"""Groups that agents sampled themselves, as a source."""

from dataclasses import replace

import torch

from gspo.rollout.external import PROBE_TOKENS, PROBES, AlreadyScored, ExternalSource
from gspo.types import Group, Prompt, Rollout, Sampling


class Sampler:
    """Samples one token; notes what it was asked."""

    version, probes = 5, []

    def generate(self, prompts, n, sampling, progress=None):
        self.asked = (prompts, n, sampling)
        return [Rollout.begun(prompt) for prompt in prompts]


def group(name, *versions, prompt=range(40)):
    version = torch.tensor([-1] * len(prompt) + list(versions))
    tokens = torch.tensor([*prompt, *[7] * len(versions)])
    query = Prompt(name, "q", tuple(prompt))
    return Group(query, [Rollout(query, tokens, version >= 0, torch.zeros(len(tokens)), version, "eos", reward=1.0)])


def test_it_hands_on_what_it_was_given():
    source = ExternalSource(Sampler(), Sampling(9))
    assert list(source) == [] and not source.stale
    groups = [group("a", 5, 5), group("b", 5)]
    assert source.give(groups) is groups and list(source) == groups and not source.stale
    source.give([*groups, group("c", 4, 5)])
    assert source.stale


def test_a_teacher_reads_what_it_is_given():
    asked = []

    def read(rollouts):
        asked.append(rollouts)
        return [replace(rollout, logp_teacher=torch.full((len(rollout.tokens),), -i)) for i, rollout in enumerate(rollouts)]

    source = ExternalSource(Sampler(), Sampling(9), read)
    groups = [group("a", 5, 5), group("b", 5)]
    groups[0].rollouts.append(groups[0].rollouts[0])
    given = source.give(groups)
    assert list(source) == given and [each.prompt for each in given] == [each.prompt for each in groups]
    assert [[float(r.logp_teacher[0]) for r in each.rollouts] for each in given] == [[0, -1], [-2]] and len(asked) == 1


def test_fresh_rollouts_are_the_samplers_probes_or_a_few_short_ones():
    sampler = Sampler()
    source = ExternalSource(sampler, Sampling(900, temperature=0.7))
    source.give([group(str(i), 4) for i in range(20)])
    fresh = source.fresh()
    prompts, n, sampling = sampler.asked
    assert len(fresh) == len(prompts) == PROBES and n == 1
    assert (sampling.max_new_tokens, sampling.temperature) == (PROBE_TOKENS, 0.7)
    assert all(len(prompt.tokens) == PROBE_TOKENS for prompt in prompts)
    sampler.probes = [Rollout.begun(Prompt("probe", "", (1,)))]
    assert source.fresh() is sampler.probes


def test_nothing_is_scored_again_and_what_others_counted_is_0():
    """Of all that are compared, whenever each of them ended; one that failed has counted nothing."""
    (one,) = group("a", 5).rollouts
    parts = [{"reward": 1.0, "calls": 2.0}, {"reward": 1.0, "full": 1.0}]
    rollouts = [*(replace(one, reward_parts=each) for each in parts), replace(one, reward=None, error="environment: no")]
    scored = AlreadyScored().score(rollouts)
    assert [each.reward for each in scored] == [1.0, 1.0, None] and AlreadyScored().counts() == {}
    assert [each.reward_parts for each in scored] == [
        {"reward": 1.0, "calls": 2.0, "full": 0.0},
        {"reward": 1.0, "calls": 0.0, "full": 1.0},
        {},
    ]
