"""How good an update is: against simulation, and where there is too little to say."""

import numpy as np
import pytest
from probe.merit import Products, Resamples, mean_square, merit, over_ages, signal, span, weights_of

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
    found = merit(products(g, r), Resamples.of(4000, 4000, 0, groups, 2), groups)
    batches = draw(rng, mine, 0.4 / np.sqrt(groups), 20_000)  # means of so many groups
    simulated = (batches @ right / np.linalg.norm(batches, axis=1)).mean()
    assert found.update[0] == pytest.approx(simulated, abs=0.06)  # of 96 mini-batches
    assert found.direction[0] == pytest.approx(mine @ right / np.linalg.norm(mine), abs=0.01)
    assert found.noise[0] == pytest.approx(groups * mine @ mine / (D * 0.16), rel=0.05)
    assert 1 / 4000 < found.largest < 3 / 4000


@pytest.mark.parametrize(("spikes", "size"), [(0, 1), (1 / 32, 10), (1 / 16, 30)])
def test_the_interval_covers_the_truth_also_where_single_groups_are_huge(spikes, size):
    """Of 60 probes of 32 groups the interval of `update` holds the true mean cosine in 85 % or more."""
    rng, mean = np.random.default_rng(2), np.full(D, 0.2)

    def groups(count):
        g = draw(rng, mean, 0.6, count)
        return g * np.where(rng.random(count) < spikes, size, 1.0)[:, None]

    batches = groups(4 * 20_000).reshape(20_000, 4, D).mean(1)
    truth = (batches @ mean / np.linalg.norm(batches, axis=1) / np.linalg.norm(mean)).mean()
    found = [
        span(merit(products(groups(32), draw(rng, mean, 0.6, 64)), Resamples.of(32, 64, 0, 4), 4).update) for _ in range(60)
    ]
    assert sum(each.low <= truth <= each.high for each in found) >= 51
    assert np.mean([each.value for each in found]) == pytest.approx(truth, abs=0.06)


def test_what_cannot_be_told_from_noise_is_no_number():
    rng = np.random.default_rng(3)
    r = draw(rng, np.zeros(D), 1.0, 32)
    assert not signal(r @ r.T, Resamples.of(32, 32, 0, 4).fresh)[1]
    strong = draw(rng, np.ones(D), 0.3, 32)
    assert signal(strong @ strong.T, Resamples.of(32, 32, 0, 4).fresh)[1]
    nothing = np.zeros((32, D))
    found = merit(products(nothing, strong), Resamples.of(32, 32, 0, 4), 4)
    for value in (found.direction, found.noise):
        assert np.isnan(span(value)).all() and not span(value).resolved
    assert np.isnan(found.largest) and (found.update == 0).all()  # an update without a gradient goes nowhere


def test_ages_between_those_measured_are_linear():
    assert weights_of([0, 3], 4) == pytest.approx([0.5, 0.5])
    assert weights_of([0, 1, 3], 4) == pytest.approx([1 / 4, 1 / 4 + 1 / 8, 1 / 8 + 1 / 4])
    assert weights_of([0, 1, 2, 6], 1) == pytest.approx([1, 0, 0, 0])
    assert weights_of([0, 2], 4).sum() == pytest.approx(1)  # beyond the last it stays
    by_age = {0: np.array([1.0, 2.0]), 3: np.array([0.0, 1.0])}
    assert over_ages(by_age, 4) == pytest.approx([0.5, 1.5])
