"""What a step makes of its updates, by hand."""

import math

import pytest

from gspo.training.metrics import UNLEARNED, mean, nothing_learned, of_updates
from gspo.types import Agreement, Update


def update(loss, clipped, skipped=0.0, lr=1.0, agreement=None, by_layer=(0.0, 1.0)):
    metrics = {"loss": loss, "clip_ratio/tokens": clipped, "updates/skipped": skipped, "lr": lr, "layers": list(by_layer)}
    return Update(metrics, agreement)


def test_updates_are_averaged_and_the_first_says_what_numerics_did():
    first = Agreement({"mismatch/kl": 0.01}, 1e-4, 0.05)
    metrics = of_updates([update(1.0, 0.05, agreement=first), update(3.0, 0.25, 1.0, 0.5, by_layer=(1.0, 3.0))])
    assert (metrics["loss"], metrics["lr"], metrics["updates"], metrics["updates/skipped"]) == (2.0, 0.5, 2, 1.0)
    assert metrics["clip_ratio/noise_only"] == 0.05 and metrics["clip_ratio/staleness"] == pytest.approx(0.1)
    assert metrics["mismatch/kl"] == 0.01 and metrics["layers"] == [0.5, 2.0]


def test_updates_that_read_nothing_count_where_they_have_a_number():
    nothing = Update({"loss": 0.0, "clip_ratio/tokens": 0.0, "updates/skipped": 0.0, "lr": 1.0})
    read = update(2.0, 0.5, agreement=Agreement({"mismatch/kl": 0.01}, 1e-4, 0.25))
    metrics = of_updates([nothing, Update(read.metrics | {"entropy": 2.0}, read.agreement)])
    assert (metrics["loss"], metrics["clip_ratio/tokens"], metrics["entropy"]) == (1.0, 0.25, 2.0)
    assert metrics["clip_ratio/noise_only"] == 0.25 and metrics["mismatch/kl"] == 0.01
    metrics = of_updates([nothing, nothing])
    assert set(UNLEARNED) < set(metrics) and metrics["updates"] == 2 and metrics["clip_ratio/tokens"] == 0
    assert metrics["entropy"] is metrics["mismatch/kl"] is metrics["clip_ratio/noise_only"] is None


def test_extremes_of_updates_stay_extremes():
    ends = [{"correction/ratio_min": low, "correction/ratio_max": high} for low, high in ((0.9, 1.1), (0.8, 1.0))]
    metrics = of_updates([Update(update(1.0, 0.0).metrics | each) for each in ends])
    assert (metrics["correction/ratio_min"], metrics["correction/ratio_max"]) == (0.8, 1.1)


def test_a_share_of_no_tokens_is_left_out_of_the_mean():
    assert mean([1.0, math.nan, 3.0]) == 2.0 and math.isnan(mean([math.nan]))


def test_a_step_without_updates_has_every_name():
    metrics = nothing_learned()
    assert set(UNLEARNED) < set(metrics) and metrics["updates"] == 0 and metrics["loss"] is None
