"""Completions are dealt evenly, whatever their lengths, and all ranks agree."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.learner.shares import deal
from gspo.types import Completion


def batch(sizes):
    """A prompt of each first number of tokens, with completions of the others."""
    made = []
    for k, (prompt, *lengths) in enumerate(sizes):
        for length in lengths:
            tokens = torch.full((prompt + length,), k)
            sampled = torch.arange(prompt + length) >= prompt
            made.append(Completion(tokens, sampled, torch.zeros(length), torch.zeros(length), 1.0))
    return made


def load(completions, part, share):
    """Tokens that a rank reads, counted the plain way."""
    seen, total = set(), 0
    for i in part:
        prompt = int(completions[i].sampled.long().argmax())
        known = share and int(completions[i].tokens[0]) in seen
        total += len(completions[i].tokens) - (prompt if known else 0)
        seen.add(int(completions[i].tokens[0]))
    return total


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(1, 60), min_size=2, max_size=6), min_size=1, max_size=12),
    st.integers(1, 9),
    st.booleans(),
)
def test_each_completion_is_dealt_once_and_no_rank_has_more_than_it_must(sizes, ranks, share):
    completions = batch(sizes)
    dealt = deal(completions, ranks, share)
    assert len(dealt) == ranks and sorted(i for part in dealt for i in part) == list(range(len(completions)))
    assert all(part == sorted(part) for part in dealt) and dealt == deal(completions, ranks, share)
    loads = [load(completions, part, share) for part in dealt]
    longest = max(len(completion.tokens) for completion in completions)
    whole = sum(len(completion.tokens) for completion in completions)
    assert max(loads) <= whole / ranks + longest  # as any greedy deal


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("prompts, per_prompt, ranks", [(64, 8, 128), (64, 8, 64), (64, 8, 8), (4, 8, 8), (512, 1, 128)])
def test_ranks_are_even_with_four_completions_each(prompts, per_prompt, ranks, share):
    draw = random.Random(prompts + ranks)
    sizes = [[draw.randint(100, 400), *(draw.randint(100, 2600) for _ in range(per_prompt))] for _ in range(prompts)]
    completions = batch(sizes)
    loads = [load(completions, part, share) for part in deal(completions, ranks, share)]
    even = sum(loads) / ranks / max(loads)
    once = load(completions, range(len(completions)), share)
    print(f"{prompts} x {per_prompt} on {ranks} ranks, share {share}: even {even:.3f}, read {sum(loads) / once:.3f} x")
    assert even >= 0.95


def test_prompts_stay_together_where_that_is_even():
    completions = batch([[50, 10, 10, 10, 10]] * 4)
    for part in deal(completions, 4, share=True):
        assert len({int(completions[i].tokens[0]) for i in part}) == 1
    split = deal(batch([[50, 40, 40, 40, 40]]), 2, share=True)  # one prompt alone: it is read twice, and both work
    assert sorted(map(len, split)) == [2, 2]


def test_one_rank_has_all_and_ranks_may_have_none():
    completions = batch([[3, 5, 5], [4, 2]])
    assert deal(completions, 1) == [[0, 1, 2]] and sorted(deal(completions, 5))[:2] == [[], []]
