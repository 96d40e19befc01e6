import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.backends.hf.tree_segments import plan
from gspo.learner import layout
from tests.learner.test_layout import completion, random_completions, random_trees


@given(st.one_of(random_trees(), random_completions()), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_pieces_hold_each_pair_that_may_look_once(completions, share):
    forest = layout.build(completions, share).forest
    size = len(forest.tokens)
    pairs = torch.zeros(size, size, dtype=torch.int64)
    causal = torch.zeros(size, dtype=torch.int64)
    pieces = plan(forest)
    for number, piece in enumerate(pieces):
        tokens = piece.queries[piece.query_mask]
        assert len(tokens.unique()) == len(tokens)
        if piece.causal:
            assert torch.equal(piece.queries, piece.keys)
            assert all(before.causal for before in pieces[:number])
            causal[tokens] += 1
        for row, column in piece.query_mask.nonzero().tolist():
            before = torch.arange(piece.keys.shape[1]) <= column if piece.causal else True
            pairs[piece.queries[row, column], piece.keys[row, piece.key_mask[row] & before]] += 1
    assert torch.equal(pairs, layout.may_look(forest).long())
    assert causal.eq(1).all()


def test_a_long_prompt_is_looked_at_and_a_short_one_looked_through():
    def queries(prompt, tokens, group):
        completions = [completion(range(prompt), tokens, first=1000 * i + 5000) for i in range(group)]
        pieces = plan(layout.build(completions, True).forest)
        return [(piece.causal, list(piece.queries.shape), int(piece.query_mask.sum())) for piece in pieces]

    assert queries(10, 60, 8) == [(True, [8, 70], 490)]  # the first row answers for the prompt
    assert queries(512, 64, 8) == [(True, [1, 512], 512), (True, [8, 64], 512), (False, [1, 512], 512)]


def test_rows_of_one_piece_are_of_like_length():
    for piece in plan(layout.build([completion([i], 10 * i + 9) for i in range(1, 12)]).forest):
        assert int(piece.key_mask.sum(1).min()) >= 0.8 * piece.keys.shape[1]


def test_the_faster_layout():
    def worth(prompt, tokens, group, share=True):
        completions = [completion(range(prompt), tokens, first=1000 * i + 5000) for i in range(group)]
        return layout.worth_sharing(layout.build(completions, share).forest)

    assert worth(512, 64, 8) and worth(64, 256, 8)
    assert not worth(4, 60, 8) and not worth(40, 40, 1)
    uneven = [completion([1, 2], size) for size in (5, 50, 90)]
    assert layout.worth_sharing(layout.build(uneven).forest)  # nothing shared, much padding
