import pytest

from gspo.report import numbers
from gspo.report.numbers import NBSP
from gspo.report.read import RunMetrics


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (numbers.duration(9.96), "10.0 s"), (numbers.duration(179), "179 s"), (numbers.duration(180), "3 min"),
        (numbers.duration(7200), "2.0 h"), (numbers.count(999_999), "999,999"), (numbers.count(2.5e6), "2.5 million"),
        (numbers.count(3e9), "3.0 billion"), (numbers.plural(1, "step"), "1 step"), (numbers.plural(0, "step"), "0 steps"),
        (numbers.percent(0.0), "0 %"), (numbers.percent(0.0123), "1.2 %"), (numbers.percent(0.5), "50 %"),
        (numbers.percent(0.994), "99 %"), (numbers.percent(0.996), "99.6 %"), (numbers.percent(0.99999), "99.9 %"),
        (numbers.percent(1.0), "100 %"), (numbers.percent(1e-5), "0.001 %"),
        (numbers.percent(None), ""), (numbers.change((-1.0, 2.0), "{:.1f}"), "−1.0 → 2.0"),
    ],
)  # fmt: skip
def test_in_the_unit_that_suits(made, text):
    assert made.replace(NBSP, " ") == text


def test_ends_are_means_of_a_twelfth():
    run = RunMetrics("r", [{"step": step, "a": float(step)} for step in range(24)])
    assert numbers.ends(run, "a") == (0.5, 22.5)
    assert numbers.ends(RunMetrics("r", run.lines[:1]), "a") == (0.0,) and numbers.ends(run, "b") == ()
    assert numbers.mean(run, "a") == 11.5 and numbers.mean(run, "b") is None and numbers.steps(run) == 23


def test_an_interval_needs_all_its_numbers():
    whole = {"eval/accuracy": 0.5, "eval/accuracy_low": 0.4, "eval/accuracy_high": 0.6}
    run = RunMetrics("r", [{"step": 0} | whole, {"step": 1, "eval/accuracy": 0.7, "eval/accuracy_low": None}])
    assert numbers.with_interval(run) == run.lines[:1]
    assert numbers.last_interval(run).replace(NBSP, " ") == " (40–60 %)"
    assert numbers.accuracy(run).replace(NBSP, " ") == "50 % → 70 %"
