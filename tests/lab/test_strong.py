"""The study of training where the mechanism is strong: its centred ratio, a whole cell, its p values. `lab/studies/report.py
--check` compares its tables with the page.
"""

import json

import numpy as np
import pytest
import strong
import strong_cell
import strong_told
import torch

from gspo.objective.completions import Completions
from gspo.statistics.intervals import student


def batch():
    rng = np.random.default_rng(0)
    y = Completions.of(torch.tensor([3, 5, 2, 4]))
    logp, old = (torch.tensor(rng.normal(-1, 0.1, 14), requires_grad=grad) for grad in (True, False))
    return logp, old, torch.tensor([1.0, -1.0, 0.5, -2.0], dtype=torch.float64), y


def test_the_centred_ratio_is_that_of_the_log_less_its_mean():
    logp, old, A, y = batch()
    found = strong_cell.gspo_centred(logp, old, A, y, 0.02, 0.03)
    log_s = [float(part.mean()) for part in (logp - old).detach().split([3, 5, 2, 4])]
    s = [np.exp(each - np.mean(log_s)) for each in log_s]
    terms = [min(r * a, min(max(r, 0.98), 1.03) * a) for r, a in zip(s, A.tolist())]
    torch.testing.assert_close(found.ratio.detach(), torch.tensor(s, dtype=torch.float64), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.loss.detach(), -torch.tensor(terms, dtype=torch.float64), rtol=1e-12, atol=0)
    assert found.clipped_low.tolist() == [r < 0.98 and a < 0 for r, a in zip(s, A.tolist())]
    (gradient,) = torch.autograd.grad(found.loss.sum(), logp)
    wide = [-r * a / n * (not low and not high) for r, a, n, low, high in zip(
        s, A.tolist(), [3, 5, 2, 4], found.clipped_low, found.clipped_high)]  # fmt: skip
    torch.testing.assert_close(gradient, torch.tensor(np.repeat(wide, [3, 5, 2, 4])), rtol=1e-12, atol=1e-15)


SMALL = strong.merged(
    strong.RUN,
    {
        "train": {"steps": 2},
        "rollout": {"num_prompts": 8, "num_generations": 2, "max_completion_length": 16},
        "algorithm": {"mini_batches": 4},
    },
)


@pytest.fixture
def small(monkeypatch):
    """Short runs."""
    monkeypatch.setattr(strong, "COLD_START", 3)
    monkeypatch.setattr(strong, "RUN", SMALL)


def cell_of(*variants):
    return strong.RunsCell("int4", 0, chosen=json.dumps({name: strong.choices(name)[4] for name in variants}))


def test_a_cell(small, tmp_path):
    found = strong_cell.run_cell(cell_of("gspo auto", "gspo auto centred"), tmp_path)["runs"]
    assert [run["variant"] for run in found] == ["gspo auto", "gspo auto centred"]
    for run in found:
        assert -1 <= run["reward"] <= 1 and not run["collapsed"] and run["spike"] > 0
        assert run["steps"] == len(run["epsilon"]) == 2 and not run["lost"]
    assert found[0]["reward"] != found[1]["reward"]
    json.dumps(found, allow_nan=False)


def test_a_run_that_ends_with_an_error_has_lost(small, tmp_path, monkeypatch):
    """Whatever reward it had reached."""
    monkeypatch.setattr(strong_cell.world, "worth", lambda prompts, completions, **columns: "nothing")
    cell = strong.RunsCell("mixture", 0, chosen=json.dumps({"gspo": strong.choices("gspo")[4]}))
    (run,) = strong_cell.run_cell(cell, tmp_path)["runs"]
    assert run["reward"] == run["mean"] == -1 and run["collapsed"] and run["lost"]


def test_p_values_are_students():
    for freedom in (2, 7, 30):
        assert strong_told.beyond(student(freedom), freedom) == pytest.approx(0.05, abs=5e-5)
        assert strong_told.quantile(0.05, freedom) == pytest.approx(student(freedom), abs=2e-3)
    assert strong_told.p_value([1.0, 2.0, 3.0]) == pytest.approx(0.0742, abs=1e-4)  # t = 2 sqrt(3), 2 degrees
    assert strong_told.p_value([0.0] * 4) == strong_told.p_value([1.0] * 4) == 1  # no noise is seen
    assert strong_told.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert strong_told.levels([0.01, 0.04, 0.03]) == pytest.approx([0.05 / 3, 0.05, 0.05 / 2])
    assert strong_told.found_by([-1.0, 0.0, 1.0], 0.05) == pytest.approx((4.303 + 1.061) / 3**0.5, abs=2e-3)


def test_a_claim_is_equal_only_where_it_says_so():
    near, far = [0.001, -0.001, 0.0005, 0.0], [0.1, 0.11, 0.12, 0.11]
    for values, equal, corrected, verdict in (
        (near, True, 1.0, "equal within 0.02"), (near, False, 1.0, "not resolved; 4 seeds find 0.00"),
        (far, True, 0.001, "above"), ([-x for x in far], False, 0.001, "below"),
    ):  # fmt: skip
        claim = strong_told.Tested("a - b", "everywhere", values, 2.0, equal, end=False)
        assert claim.row(0.05, corrected, 0.05 / 8)[-1].startswith(verdict)
        assert (
            strong_told.Tested("a - b", "", values, 2.0, equal, end=True)
            .row(0.05, corrected, 0.01)[-1]
            .startswith("not judged")
        )
