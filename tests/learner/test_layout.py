from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.learner import layout
from gspo.learner.layout import split
from gspo.types import Completion


def completion(prompt, sampled, advantage=0.0, first=100):
    tokens = torch.tensor(list(prompt) + [first + i for i in range(sampled)])
    mask = torch.arange(len(tokens)) >= len(prompt)
    logp = torch.arange(sampled, dtype=torch.float32)
    return Completion(tokens, mask, logp_mu=logp, logp_old=logp, advantage=advantage)


def path_to(at, parent):
    """A token's ancestors and itself, from the root on."""
    path = []
    while at >= 0:
        path.insert(0, at)
        at = int(parent[at])
    return path


def naive_may_look(batch):
    """i may look at j exactly when j is i or an ancestor of it."""
    parent = batch.forest.parent.tolist()
    mask = torch.zeros(len(parent), len(parent), dtype=torch.bool)
    for i in range(len(parent)):
        mask[i, path_to(i, parent)] = True
    return mask


COMPLETIONS = [completion([1, 2, 3], 2), completion([1, 2, 3], 4, first=200), completion([1, 2, 9], 1), completion([5], 3)]


def test_a_shared_prompt_stands_once():
    assert len(layout.build(COMPLETIONS, share=False).forest.tokens) == sum(len(r.tokens) for r in COMPLETIONS)
    shared = layout.build(COMPLETIONS, share=True)
    # [1 2 3] + 2, then 4 more below the same prompt, then 9 below [1 2], then another root
    assert shared.forest.tokens.tolist() == [1, 2, 3, 100, 101, 200, 201, 202, 203, 9, 100, 5, 100, 101, 102]
    assert shared.forest.parent.tolist() == [-1, 0, 1, 2, 3, 2, 5, 6, 7, 1, 9, -1, 11, 12, 13]
    assert shared.forest.position.tolist() == [0, 1, 2, 3, 4, 3, 4, 5, 6, 2, 3, 0, 1, 2, 3]


def test_no_token_is_shared_whose_experts_differ():
    routes = torch.tensor([[3, 4, 5, 6, 7], [3, 4, -1, 6, 7]]).reshape(2, 5, 1, 1)
    pair = [replace(completion([1, 2, 3], 2), routes=routes[i]) for i in range(2)]
    batch = layout.build(pair, True)
    assert [batch.routes[path].flatten().tolist() for path in batch.path.split(5)] == routes.flatten(1).tolist()
    assert len(batch.forest.tokens) == len(batch.routes) == layout.size(pair, True) == 8
    assert [len(layout.micro_batches(pair, limit, True)) for limit in (7, 8)] == [2, 1]


@pytest.mark.parametrize("share", [False, True])
def test_flat_views_describe_each_sampled_token(share):
    batch = layout.build(COMPLETIONS, share)
    assert batch.length.tolist() == [2, 4, 1, 3]
    assert batch.completion.tolist() == [0, 0, 1, 1, 1, 1, 2, 3, 3, 3]
    assert batch.forest.tokens[batch.node].tolist() == [100, 101, 200, 201, 202, 203, 100, 100, 101, 102]


@st.composite
def random_completions(draw):
    prompts = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=3))
    out = []
    for prompt in prompts:
        for _ in range(draw(st.integers(1, 3))):
            tokens = prompt + draw(st.lists(st.integers(4, 9), min_size=1, max_size=8))
            turn = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
            sampled = torch.tensor([i >= len(prompt) and (keep or i == len(prompt)) for i, keep in enumerate(turn)])
            logp = torch.zeros(int(sampled.sum()))
            out.append(Completion(torch.tensor(tokens), sampled, logp, logp, 0.0))
    return out


def paths_to(batch):
    """For each sampled token, the tokens on its path, itself included."""
    parent = batch.forest.parent.tolist()
    return [batch.forest.tokens[path_to(node, parent)].tolist() for node in batch.node.tolist()]


@given(random_completions(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_layout_predicts_each_sampled_token_from_its_own_history(completions, share):
    batch = layout.build(completions, share)
    assert torch.equal(layout.may_look(batch.forest), naive_may_look(batch))
    expected = [r.tokens[: i + 1].tolist() for r in completions for i in r.sampled.nonzero()[:, 0].tolist()]
    assert paths_to(batch) == expected
    rows = layout.padded(batch, pad_id=-7)
    width = rows.tokens.shape[1]
    for before, path in zip(rows.before.tolist(), expected):
        row, column = divmod(before, width)
        assert rows.tokens[row, : column + 1].tolist() == path[:-1]
        assert rows.position[row, column] == len(path) - 2
    one, mask = layout.shared(batch), layout.may_look(batch.forest)
    for before, path in zip(one.before.tolist(), expected):
        seen = mask[before].nonzero()[:, 0]
        assert one.tokens[0, seen].tolist() == path[:-1]
        assert one.position[0, seen].tolist() == list(range(len(path) - 1))


def check_micro_batches(completions, budget, share):
    parts = layout.micro_batches(completions, budget, share)
    assert sorted(i for part in parts for i in part) == list(range(len(completions)))
    for part in ([completions[i] for i in indices] for indices in parts):
        batch = layout.build(part, share)
        read = len(batch.forest.tokens) if share else layout.padded(batch, 0).tokens.numel()
        assert read <= budget or len(part) == 1
        assert layout.size(part, share) == read


@given(random_completions(), st.integers(1, 60), st.booleans())
@settings(max_examples=100, deadline=None)
def test_micro_batches_keep_every_completion_and_the_token_budget(completions, budget, share):
    check_micro_batches(completions, budget, share)


def test_advantages_by_token():
    one = Completion(torch.tensor([1, 2, 3]), torch.tensor([False, True, True]), torch.zeros(2), torch.zeros(2), 0.5)
    two = Completion(one.tokens, one.sampled, one.logp_mu, one.logp_old, torch.tensor([1.0, -1.0]))
    assert layout.build([one]).advantage.tolist() == [0.5]
    assert layout.build([one, two]).advantage.tolist() == [0.5, 0.5, 1.0, -1.0]


def test_bad_input():
    for batch, why in (
        ([], "at least one completion"),
        ([completion([], 2)], "prompt token before it"),
        ([completion([1], 1), completion([1, 2], 0)], "at least one sampled token"),
    ):
        with pytest.raises(ValueError, match=why):
            layout.build(batch)


def _grow(draw, tree, below, depth):
    tokens, parent, sampled = tree
    for _ in range(draw(st.integers(1, 3))):
        tokens.append(draw(st.integers(0, 3)))
        parent.append(below)
        sampled.append(below >= 0 and draw(st.booleans()))
        below = len(tokens) - 1
    for _ in range(draw(st.integers(0, 2)) if depth < 2 else 0):
        _grow(draw, tree, below, depth + 1)
    if below not in parent:
        tokens.append(9)
        parent.append(below)
        sampled.append(True)


@st.composite
def random_trees(draw):
    """Completions whose histories branch, in depth-first order; each branch ends with a sampled token."""
    out = []
    for _ in range(draw(st.integers(1, 3))):
        tree = [], [], []  # tokens, parents, sampled
        _grow(draw, tree, -1, 0)
        if draw(st.booleans()):
            _grow(draw, tree, -1, 1)  # a history of which nothing was kept
        tokens, parent, sampled = tree
        logp = torch.arange(sum(sampled), dtype=torch.float32)
        turn = torch.arange(sum(sampled)) // 2
        columns = {"turn": turn, "parent": torch.tensor(parent)}
        out.append(Completion(torch.tensor(tokens), torch.tensor(sampled), logp, logp, 0.0, **columns))
    return out


@given(random_trees(), st.booleans(), st.integers(1, 80))
@settings(max_examples=150, deadline=None)
def test_branches_are_read_from_their_own_history_and_each_token_is_trained_on_once(completions, share, budget):
    batch = layout.build(completions, share)
    expected = [r.tokens[path_to(at, r.parent)].tolist() for r in completions for at in r.sampled.nonzero()[:, 0].tolist()]
    assert paths_to(batch) == expected
    assert torch.equal(layout.may_look(batch.forest), naive_may_look(batch))
    assert batch.turn.tolist() == [t for r in completions for t in r.turn.tolist()]
    rows = layout.padded(batch, pad_id=-7)
    assert rows.before.unique().numel() <= len(expected) == len(rows.before)
    for before, path in zip(rows.before.tolist(), expected):
        row, column = divmod(before, rows.tokens.shape[1])
        assert rows.tokens[row, : column + 1].tolist() == path[:-1]
    one, mask = layout.shared(batch), layout.may_look(batch.forest)
    for before, path in zip(one.before.tolist(), expected):
        assert one.tokens[0, mask[before].nonzero()[:, 0]].tolist() == path[:-1]
    check_micro_batches(completions, budget, share)


@pytest.mark.parametrize(
    ("groups", "parts", "sizes"), [(8, 4, [2, 2, 2, 2]), (7, 4, [2, 2, 1, 2]), (3, 4, [1, 1, 1]), (0, 4, [])]
)
def test_split(groups, parts, sizes):
    batches = split([[i] for i in range(groups)], parts)
    assert sorted(map(len, batches)) == sorted(sizes)
    assert [x for batch in batches for x in batch] == list(range(groups))
