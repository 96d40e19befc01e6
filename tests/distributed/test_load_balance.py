"""Completions are dealt evenly, whatever their lengths, and all ranks agree."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.distributed.load_balance import EVEN, split_evenly
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
    st.lists(st.lists(st.integers(1, 60), min_size=2, max_size=6), min_size=1, max_size=12), st.integers(1, 9), st.booleans()
)
def test_each_completion_is_dealt_once_and_no_rank_has_more_than_it_must(sizes, ranks, share):
    completions = batch(sizes)
    dealt = split_evenly(completions, ranks, share)
    assert len(dealt) == ranks and sorted(i for part in dealt for i in part) == list(range(len(completions)))
    assert all(part == sorted(part) for part in dealt) and dealt == split_evenly(completions, ranks, share)
    loads = [load(completions, part, share) for part in dealt]
    fullest = dealt[loads.index(max(loads))]  # cannot give anything away: without its shortest it has less than the emptiest
    assert max(loads) <= max(EVEN * sum(loads) / ranks, min(loads) + min(len(completions[i].tokens) for i in fullest))


def forced(completions, ranks):
    """What the fullest rank reads at least: the mean, the longest, or k + 1 of the k * ranks + 1 longest."""
    sizes = sorted((len(completion.tokens) for completion in completions), reverse=True)
    most = [sum(sizes[k * (ranks - 1) : k * ranks + 1]) for k in range((len(sizes) - 1) // ranks + 1)]
    return max(sum(sizes) / ranks, *most)


DRAWN = {
    "evenly": lambda draw: draw.randint(100, 2600),
    "log-normal": lambda draw: 1 + int(draw.lognormvariate(6, 1)),
    "two lengths": lambda draw: draw.choice((50, 2600)),
    "a tenth is long": lambda draw: 2600 if draw.random() < 0.1 else 50,
}


@settings(deadline=None, max_examples=300, derandomize=True)  # no proof: worse batches may exist
@given(st.sampled_from(list(DRAWN)), st.sampled_from([1, 2, 4, 8]), st.integers(2, 16), st.integers(4, 8), st.integers(0))
def test_with_four_completions_each_the_fullest_rank_has_little_more_than_it_must(kind, per_prompt, ranks, each, seed):
    draw, prompts = random.Random(seed), -(-ranks * each // per_prompt)
    sizes = [[draw.randint(10, 400), *(DRAWN[kind](draw) for _ in range(per_prompt))] for _ in range(prompts)]
    completions = batch(sizes)
    loads = [load(completions, part, False) for part in split_evenly(completions, ranks)]
    least = forced(completions, ranks)
    assert least <= max(loads) <= 1.05 * least


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("prompts, per_prompt, ranks", [(64, 8, 128), (64, 8, 8), (512, 1, 128)])
def test_ranks_are_even_where_lengths_allow_it(prompts, per_prompt, ranks, share):
    draw = random.Random(prompts + ranks)
    sizes = [[draw.randint(100, 400), *(draw.randint(100, 2600) for _ in range(per_prompt))] for _ in range(prompts)]
    completions = batch(sizes)
    loads = [load(completions, part, share) for part in split_evenly(completions, ranks, share)]
    assert sum(loads) / ranks / max(loads) >= 0.95


def test_prompts_stay_together_where_that_is_even():
    completions = batch([[50, 10, 10, 10, 10]] * 4)
    assert all(len({int(completions[i].tokens[0]) for i in part}) == 1 for part in split_evenly(completions, 4, share=True))
    split = split_evenly(batch([[50, 40, 40, 40, 40]]), 2, share=True)  # one prompt alone: it is read twice, and both work
    assert sorted(map(len, split)) == [2, 2]


def test_one_rank_has_all_and_ranks_may_have_none():
    completions = batch([[3, 5, 5], [4, 2]])
    assert split_evenly(completions, 1) == [[0, 1, 2]] and sorted(split_evenly(completions, 5))[:2] == [[], []]
