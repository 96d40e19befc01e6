"""Every slow test belongs to one share, whatever the day is called."""

import pytest

from tests.slow import runs

NAMES = [f"tests/test_x.py::test[{i}]" for i in range(200)]


def test_all_or_none():
    assert all(runs(name, "1") for name in NAMES)
    assert not any(runs(name, wanted) for name in NAMES for wanted in ("", "0"))


def test_shares_are_the_whole():
    every = [{name for name in NAMES if runs(name, f"{k}/8")} for k in range(8)]
    assert sum(map(len, every)) == len(NAMES) == len(set().union(*every)) and min(map(len, every)) > 10
    assert every[1] == {name for name in NAMES if runs(name, "009/8")}


@pytest.mark.parametrize("wanted", ["yes", "1/0", "-1/8", "1/", "all"])
def test_bad_values_are_refused(wanted):
    with pytest.raises(pytest.UsageError, match="give 1 for all slow tests"):
        runs(NAMES[0], wanted)
