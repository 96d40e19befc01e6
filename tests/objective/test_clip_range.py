"""The clip range that sets itself."""

import math

import pytest
import torch

from gspo.objective.clip_range import BINS, AutoClip, moved, range_at, trend

STILL = torch.ones(100)


def noisy(spread):
    return 1 + spread * torch.randn(4000, generator=torch.Generator().manual_seed(5))


def share(clip, ratio, A):
    """Clipped tokens, as the losses count them."""
    return float((((ratio > 1 + clip.e_high) & (A > 0)) | ((ratio < 1 - clip.e_low) & (A < 0))).double().mean())


def draw(spread, n=20_000, seed=0):
    g = torch.Generator().manual_seed(seed)
    return 1 + spread * torch.randn(n, generator=g, dtype=torch.float64), torch.randn(n, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("spread", [1e-5, 1e-3, 1e-1])
def test_one_step_finds_the_range_over_orders_of_magnitude(spread):
    clip = AutoClip(3e-4, 4e-4, target=0.15)
    ratio, A = draw(spread)
    clip.observe(ratio, A)
    clip.update_range(noise=STILL)
    assert share(clip, ratio, A) == pytest.approx(0.15, abs=0.002)
    assert clip.e_high / clip.e_low == pytest.approx(4 / 3)
    assert not clip.at_floor


def test_it_follows_a_drift_by_at_most_a_factor_of_two_a_step():
    clip, before = AutoClip(3e-4, 4e-4, target=0.1), None
    for step in range(12):
        for seed in range(3):
            clip.observe(*draw(1e-3 if step < 4 else 1e-1, seed=seed))
        clip.update_range(noise=STILL)
        assert before is None or before / 2 * 0.999 <= clip.e_low <= before * 2.001
        before = clip.e_low
    assert share(clip, *draw(1e-1)) == pytest.approx(0.1, abs=0.01)


def test_what_moves_to_the_harmless_side_is_no_reason_to_clip():
    clip = AutoClip(3e-4, 4e-4, target=0.1)
    ratio = 1 + torch.linspace(1e-4, 1e-2, 1000, dtype=torch.float64)
    clip.observe(ratio, torch.where(torch.arange(1000) % 2 == 0, 1.0, -1.0))  # half of it is: A < 0
    clip.update_range(noise=STILL)
    # 100 of the 500 with A > 0 lie above the range: the upper fifth
    assert clip.e_high == pytest.approx(1e-4 + 0.8 * 9.9e-3, rel=0.02)


def test_it_stops_where_numerics_alone_would_clip_a_hundredth():
    clip = AutoClip(3e-4, 3e-4, target=0.15)
    clip.observe(*draw(1e-6))
    clip.update_range(noisy(1e-4))
    assert clip.at_floor and clip.e_low == pytest.approx(2.05e-4, rel=0.1)  # a hundredth of both signs: 2 % of one side
    for _ in range(9):
        clip.observe(*draw(1e-2))
        clip.update_range(noisy(1e-4))
    assert not clip.at_floor


def test_numerics_that_shift_the_ratio_count_as_well():
    """A coarse sampler puts s_i below 1 on average; clipped there, completions with A < 0 would lose their gradient."""
    clip = AutoClip(3e-4, 4e-4, target=0.15)
    for _ in range(3):
        clip.observe(*draw(1e-3))
        clip.update_range(noisy(1e-3) - 0.02)
    assert clip.e_low > 0.02


def test_nothing_seen_changes_nothing_and_all_at_rest_stands_at_the_floor():
    clip = AutoClip(3e-4, 4e-4, target=0.15)
    clip.update_range(noise=STILL)
    assert (clip.e_low, clip.at_floor) == (3e-4, False)
    clip.observe(torch.ones(10), torch.ones(10))
    clip.update_range(noisy(1e-6))
    assert clip.at_floor and 1e-6 < clip.e_low < 3e-6


def test_ratios_of_any_size_are_taken():
    clip = AutoClip(0.2, 0.27, target=0.15)
    clip.observe(torch.tensor([0.0, 1e6, 1 + 1e-15, 1.0], dtype=torch.float64), torch.tensor([-1.0, 1.0, 1.0, 0.0]))
    clip.update_range(noise=STILL)
    assert 0 < clip.e_low <= 0.5


def test_a_resumed_one_goes_on_the_same():
    steady, resumed = AutoClip(3e-4, 4e-4, 0.15), AutoClip(3e-4, 4e-4, 0.15)
    for step in range(8):
        if step == 3:
            resumed.load_state_dict(steady.state_dict())
        for clip in (steady, resumed) if step >= 3 else (steady,):
            clip.observe(*draw(1e-3 * (step + 1), seed=step))
            clip.update_range(noise=STILL)
        assert step < 3 or steady.e_low == resumed.e_low


@pytest.mark.parametrize("teaching", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("growth", [1.0, 1.15, 0.9])
def test_the_target_holds_among_tokens_that_teach_also_while_ratios_grow(teaching, growth):
    """Tokens without an advantage have no say: at 5 % teaching groups the range once fell to nothing."""
    clip, found = AutoClip(3e-4, 4e-4, target=0.15), []
    g = torch.Generator().manual_seed(0)
    for step in range(40):
        ratio = torch.exp(1e-3 * growth**step * torch.randn(4000, generator=g, dtype=torch.float64))
        A = torch.randn(4000, generator=g) * (torch.rand(4000, generator=g) < teaching)
        if step >= 5:
            found.append(share(clip, ratio[A != 0], A[A != 0]))
        clip.observe(ratio, A)
        clip.update_range(noise=STILL)
    assert sum(found) / len(found) == pytest.approx(0.15, abs=0.01)


def test_histograms_move_by_hand():
    counts = torch.tensor([0.0, 2.0, 4.0, 0.0], dtype=torch.float64)
    assert moved(counts, 0.0).tolist() == counts.tolist()
    assert moved(counts, 1 / BINS).tolist() == [0, 0, 2, 4]
    assert moved(counts, 0.5 / BINS).tolist() == [0, 1, 3, 2]
    assert moved(counts, -0.5 / BINS).tolist() == [1, 3, 2, 0]
    assert moved(counts, 9.0).tolist() == [0, 0, 0, 6] and moved(counts, -9.0).tolist() == [6, 0, 0, 0]


def test_the_trend_by_hand():
    assert trend([(1e-3, 5), (1e-2, 5), (1e-1, 5)]) == pytest.approx(1.0)
    assert trend([(1e-3, 5), (0.0, 5), (1e-1, 5), (1.0, 5)]) == pytest.approx(1.0)
    assert trend([(1e-3, 5), (1e-2, 5)]) == 0 and trend([]) == 0
    assert trend([(1.0, 1), (1.0, 1), (1.0, 1), (10.0, 1e-9)]) == pytest.approx(0, abs=1e-6)  # a step of hardly a token


def test_it_begins_with_what_fits_the_length_until_ratios_were_seen():
    clip = AutoClip(3e-4, 4e-4, target=0.15)
    clip.begin(1)
    assert (clip.e_low, clip.e_high) == pytest.approx((0.058, 0.232 / 3))
    clip.update_range(noise=STILL)  # a step without an advantage
    clip.begin(100)
    assert clip.e_low == pytest.approx(0.058 * math.exp(-0.83 * math.log(100)))
    clip.begin(1000)  # as for 256 tokens
    assert clip.e_low == pytest.approx(0.058 / 2**6.64)
    clip.observe(*draw(1e-3))
    clip.update_range(noise=STILL)
    found = clip.e_low
    resumed = AutoClip(3e-4, 4e-4, target=0.15)
    resumed.load_state_dict(clip.state_dict())
    for each in (clip, resumed):
        each.begin(25)
        assert each.e_low == found


def test_a_range_at_another_length_by_hand():
    """Meant for 100 tokens, 1 - e_low = .64 and 1 + e_high = 1.21: the root at 400 tokens, the square at 25."""
    low, high = range_at(torch.tensor([100.0, 400.0, 25.0]), 0.36, 0.21, 100)
    assert low.tolist() == pytest.approx([0.36, 0.2, 1 - 0.64**2])
    assert high.tolist() == pytest.approx([0.21, 0.1, 1.21**2 - 1])
    assert [float(x) for x in range_at(torch.tensor(10_000.0), 3e-4, 4e-4, 100)] == pytest.approx(
        [3e-5, 4e-5], rel=1e-2
    )  # a tenth, if it is narrow
