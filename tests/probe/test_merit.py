"""How good an update is: against simulation, and where there is too little to say."""

import numpy as np
import pytest

from gspo.probe.merit import Products, Resamples, mean_square, merit, over_ages, signal, span, weights_of

D = 24


def draw(rng, mean, spread, groups):
    return mean + spread * rng.normal(size=(groups, len(mean)))


def products(g, r):
    return Products(g @ g.T, g @ r.T, r @ r.T)


def one(groups):
    return np.ones((1, groups))


def test_the_square_of_a_mean_takes_pairs_of_different_groups():
    x = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    pairs = [x[i] @ x[j] for i in range(3) for j in range(3) if i != j]
    assert mean_square(x @ x.T, one(3))[0] == pytest.approx(sum(pairs) / 6)
    assert mean_square(x @ x.T, np.array([[2.0, 1.0, 0.0]]))[0] == pytest.approx(x[0] @ x[1])  # a group is no pair of itself
    assert np.isnan(mean_square(x @ x.T, np.array([[3.0, 0.0, 0.0]]))[0])


def test_noise_is_not_counted_as_signal():
    rng, mean = np.random.default_rng(0), np.zeros(D)
    mean[0] = 0.5
    found = [mean_square(x @ x.T, one(6))[0] for x in (draw(rng, mean, 1.0, 6) for _ in range(3000))]
    assert np.mean(found) == pytest.approx(0.25, abs=4 * np.std(found) / np.sqrt(len(found)))


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_an_update_goes_as_far_the_right_way_as_in_a_simulation(groups):
    rng = np.random.default_rng(1)
    right, mine = rng.normal(size=D), rng.normal(size=D)
    right /= np.linalg.norm(right)
    mine = 0.8 * right + 0.2 * mine / np.linalg.norm(mine)
    g, r = draw(rng, mine, 0.4, 4000), draw(rng, right, 0.4, 4000)
    found = merit(products(g, r), Resamples.of(4000, 4000, 0, 2), groups)
    batches = draw(rng, mine, 0.4 / np.sqrt(groups), 20_000)  # means of so many groups
    simulated = (batches @ right).mean() / np.sqrt((batches**2).sum(1).mean())
    assert found.update[0] == pytest.approx(simulated, abs=0.01)
    assert found.direction[0] == pytest.approx(mine @ right / np.linalg.norm(mine), abs=0.01)
    assert found.noise[0] == pytest.approx(groups * mine @ mine / (D * 0.16), rel=0.05)
    assert 1 / 4000 < found.largest < 3 / 4000


def test_the_interval_covers_the_truth():
    """Of 200 probes of 24 groups the interval of `update` holds the true value in 90 % or more."""
    rng, mean = np.random.default_rng(2), np.full(D, 0.2)
    square, spread = mean @ mean, D * 0.36
    truth = square / (np.sqrt(square) * np.sqrt(square + spread / 4))
    held = 0
    for _ in range(200):
        g, r = draw(rng, mean, 0.6, 24), draw(rng, mean, 0.6, 48)
        found = span(merit(products(g, r), Resamples.of(24, 48, 0, 200), 4).update)
        held += found.low <= truth <= found.high
    assert held >= 180


def test_pairs_are_resampled_alike_at_every_age():
    a, b = Resamples.of(8, 16, 0), Resamples.of(8, 16, 3)
    assert (a.measured == b.measured).all() and not (a.fresh == b.fresh).all()
    assert (a.measured[0] == 1).all() and (a.measured.sum(1) == 8).all()


def test_what_cannot_be_told_from_noise_is_no_number():
    rng = np.random.default_rng(3)
    r = draw(rng, np.zeros(D), 1.0, 32)
    assert not signal(r @ r.T, Resamples.of(32, 32, 0).fresh)[1]
    strong = draw(rng, np.ones(D), 0.3, 32)
    assert signal(strong @ strong.T, Resamples.of(32, 32, 0).fresh)[1]
    nothing = np.zeros((32, D))
    found = merit(products(nothing, strong), Resamples.of(32, 32, 0), 4)
    for value in (found.direction, found.noise, found.update):
        assert np.isnan(span(value)).all() and not span(value).resolved
    assert np.isnan(found.largest)


def test_ages_between_those_measured_are_linear():
    assert weights_of([0, 3], 4) == pytest.approx([0.5, 0.5])
    assert weights_of([0, 1, 3], 4) == pytest.approx([1 / 4, 1 / 4 + 1 / 8, 1 / 8 + 1 / 4])
    assert weights_of([0, 1, 2, 6], 1) == pytest.approx([1, 0, 0, 0])
    assert weights_of([0, 2], 4).sum() == pytest.approx(1)  # beyond the last it stays
    by_age = {0: np.array([1.0, 2.0]), 3: np.array([0.0, 1.0])}
    assert over_ages(by_age, 4) == pytest.approx([0.5, 1.5])
