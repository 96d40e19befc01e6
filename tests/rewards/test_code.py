"""Comparisons are made of plain text and plain data, by the rules that the benchmarks state."""

import math

import pytest

from gspo.rewards.code import program_of, same_stdout, same_value


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("3\n", "3", True),
        ("  1 2 \n3  ", "1 2\n3", True),
        ("1.0 2", "1 2.00", True),
        ("1e3", "1000", True),
        ("1\n2", "1 2", False),
        ("1\n\n2", "1\n2", False),
        ("yes", "YES", False),
        ("0.1", "0.10000001", False),
        ("", "", True),
        ("", "0", False),
        ("nan", "NaN", False),
        ("sNaN", "1", False),
        ("1_0", "10", True),  # Decimal's own reading
        ("9" * 20_000, "9" * 20_000, True),
        ("9" * 20_000, "9" * 20_000 + ".0", False),
    ],
)
def test_output(output, expected, same):
    assert same_stdout(output, expected) is same


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        ((1, 2), [1, 2], True),
        ([1, 2], (1, 2), True),
        ([(1, 2)], [[1, 2]], False),
        (1, 1.0, True),
        ({"a": 1}, {"a": 1}, True),
        ("1", 1, False),
        (math.nan, math.nan, False),
        (None, None, True),
    ],
)
def test_values(value, expected, same):
    assert same_value(value, expected) is same


def test_deep_values_are_no_crash():
    deep: list = []
    other: list = []
    for _ in range(100_000):
        deep, other = [deep], [other]
    assert same_value(deep, other) is False


def test_the_last_complete_block_is_the_program():
    text = "First\n```python\na = 1\n```\nno, rather\n```py\nb = 2\n```\nand ```c``` and\n```\nnever closed"
    assert program_of(text) == "b = 2\n"
    assert program_of("nothing") is None
    assert program_of("```\nx\n```") == "x\n"
