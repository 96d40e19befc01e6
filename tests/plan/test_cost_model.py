"""Formulas of what ranks cost, against numbers worked out by hand."""

from dataclasses import replace

import pytest

from gspo.plan import cost_model
from gspo.plan.cost_model import Layer, Sent, Shape, Spread, Weight, Work

# A model of two layers, H = 4: embeddings and head of 10 words, 4 experts of width 3 (3 x 4 x 3 numbers each), and a
# 4 x 4 matrix.
EMBEDDING, MATRIX, EXPERTS = Weight(10, 4), Weight(4, 4), Weight(4, 36, experts=True)
LAYER = Layer((MATRIX, EXPERTS))
LAYERS = [Layer((EMBEDDING,)), LAYER, LAYER, Layer((EMBEDDING,), kept=True)]
WEIGHTS = [weight for layer in LAYERS for weight in layer.weights]
NARROW = [replace(one, weights=(replace(MATRIX, narrow=True), EXPERTS)) if one == LAYER else one for one in LAYERS]
SHAPE = Shape(hidden=4, layers=2, queries=4, keys=2, width=6, mixtures=2, taken=2, expert_width=3)
WORK = Work(training=1, reading=1, training_tokens=5, reading_tokens=5)


def sizes(spread, checkpointing=False, work=WORK):
    return {row.what: row for row in cost_model.sent(LAYERS, SHAPE, spread, work, 4, checkpointing)}


def test_a_rank_holds_the_first_rows_of_each_weight():
    assert cost_model.held(WEIGHTS, Spread(1)) == sum(w.size for w in WEIGHTS) == 40 + 16 + 144 + 16 + 144 + 40
    # on 4: 3 of 10 rows, 1 of 4, 1 of 4 experts
    assert cost_model.held(WEIGHTS, Spread(4)) == 2 * 3 * 4 + 2 * 4 + 2 * 36
    # 2 replicas of 2 shards; and experts on 2 ranks first, then on 4 / 2
    assert cost_model.held(WEIGHTS, Spread(4, 1, 2)) == 2 * 5 * 4 + 2 * 8 + 2 * 72
    assert cost_model.held(WEIGHTS, Spread(4, 2)) == cost_model.held(WEIGHTS, Spread(4))
    # 8 ranks cannot divide 4 experts: the first holds one, as on 4
    assert cost_model.held(WEIGHTS, Spread(8)) == 2 * 2 * 4 + 2 * 4 + 2 * 36
    assert cost_model.unevenness(WEIGHTS, Spread(8)) == pytest.approx(96 * 8 / 400)


def test_what_is_whole_at_the_same_time():
    # the head; two layers in float32, the lower one with its gradient, the upper one's being added up, and embeddings ahead
    assert cost_model.gathered(LAYERS, Spread(4), 4) == 4 * (40 + 2 * 160 + 160 + 40)
    assert cost_model.gathered(LAYERS[1:], Spread(4), 4) == 4 * (40 + 3 * 160)
    assert cost_model.gathered(LAYERS[1:3], Spread(4), 4) == 4 * 3 * 160
    assert cost_model.gathered(LAYERS, Spread(4, 2), 4) == 4 * (40 + 3 * (16 + 72) + 40)
    assert cost_model.cast(WEIGHTS, embedded=40, experts=False) == 32
    assert cost_model.cast(WEIGHTS, embedded=40, experts=True) == 32 + 2 * 144
    # the matrix and its gradient in bfloat16, and the other's gradient in float32; of the experts all in float32
    assert cost_model.gathered(NARROW, Spread(4), 4) == 4 * 40 + (2 * 2 + 4) * 16 + 4 * 3 * 144 + 4 * 40


def test_weights_that_are_gathered_in_bfloat16_send_half_and_their_gradients_as_much():
    wide, narrow = (
        {row.what: row for row in cost_model.sent(of, SHAPE, Spread(4), WORK, 4, False)} for of in (LAYERS, NARROW)
    )
    for row in ("all-gather of dense weights, forward", "all-gather of dense weights, backward"):
        assert wide[row].training - narrow[row].training == 3 * (2 * 4) * 2  # two matrices, two bytes less a number
    assert wide["all-gather of dense weights, forward"].reading - 3 * (2 * 4) * 2 == (
        narrow["all-gather of dense weights, forward"].reading
    )
    for row in wide.keys() - {"all-gather of dense weights, forward", "all-gather of dense weights, backward"}:
        assert narrow[row] == wide[row]


def test_bytes_of_a_micro_batch_without_experts_apart():
    found = sizes(Spread(4))
    dense, experts = 3 * (2 * 12 + 2 * 4) * 4, 3 * (2 * 36) * 4  # 3 times what a rank holds, 4 bytes each
    assert {name: row.training for name, row in found.items()} == {
        "all-gather of dense weights, forward": dense,
        "all-gather of dense weights, backward": dense - 3 * 12 * 4,  # the head is still whole
        "reduce-scatter of gradients of dense weights": dense,
        "all-gather of experts, forward": experts,
        "all-gather of experts, backward": experts,
        "reduce-scatter of gradients of experts": experts,
    }
    assert [row.reading for row in found.values()] == [dense, 0, 0, experts, 0, 0]


def test_bytes_with_experts_apart():
    found = sizes(Spread(4, 2))
    # 2 ranks hold the same experts: each sends its one expert of each layer to the other
    assert found["all-gather of experts, forward"].training == 2 * 36 * 4
    # there and back, 2 layers x 5 tokens x 2 experts x 4 numbers x 4 bytes, half of which stays
    rows = 2 * (2 * 5 * 2 * 4) * 4 / 2
    assert [found[f"tokens to experts and back, {p}"].training for p in ("forward", "backward")] == [rows, rows]
    assert found["tokens to experts and back, forward"].reading == rows
    again = sizes(Spread(4, 2), checkpointing=True)
    assert again["tokens to experts and back, backward"].training == 2 * rows
    whole = sizes(Spread(2, 2))
    assert "all-gather of experts, forward" not in whole  # no other rank holds the same


def test_bytes_among_replicas():
    found = sizes(Spread(4, 1, 2))
    assert found["all-reduce of gradients among replicas"].training == 2 * 0.5 * 200 * 4
    assert found["all-gather of dense weights, forward"].training == 1 * (2 * 20 + 2 * 8) * 4
    alone = sizes(Spread(1))
    assert alone == {}


def test_bytes_of_a_step():
    assert Sent("x", training=3.0, reading=2.0, step=1.0).total(Work(5, 7, 1, 1)) == 15 + 14 + 1
    assert cost_model.published(WEIGHTS, Spread(4), 4).step == 104 * 4 * 3 / 4
    assert cost_model.published(WEIGHTS, Spread(8, 1, 2), 4).step == cost_model.published(WEIGHTS, Spread(4), 4).step / 2


def test_activations():
    attention, mixture = 5 * 4 + 5 * (4 + 4), 2 * (8 + 15)
    assert cost_model.activations(SHAPE, 7, 4, False) == 7 * 4 * 2 * (attention + mixture)
    assert cost_model.activations(SHAPE, 7, 4, True) == 7 * 4 * (2 * 4 + attention + mixture)
    dense = Shape(hidden=4, layers=2, queries=4, keys=2, width=6)
    assert cost_model.activations(dense, 1, 1, False) == 2 * (attention + 30)


def test_the_smallest_number_of_ranks_that_holds_the_state():
    each = 16
    for bytes_ in (400 * each, 104 * each, 96 * each, 88 * each):
        found = cost_model.smallest(WEIGHTS, Spread(1), each, bytes_)
        assert cost_model.held(WEIGHTS, Spread(found)) * each <= bytes_
        assert all(cost_model.held(WEIGHTS, Spread(fewer)) * each > bytes_ for fewer in range(1, found))
    assert cost_model.smallest(WEIGHTS, Spread(1), each, 104 * each) == 4
    assert cost_model.smallest(WEIGHTS, Spread(4, 2, 2), each, 104 * each) == 8  # 2 replicas of 4
    assert cost_model.smallest(WEIGHTS, Spread(1), each, 87 * each, most=64) is None  # an expert of each layer stays
    assert cost_model.smallest(WEIGHTS, Spread(1), each, 88 * each, most=64) == 10
