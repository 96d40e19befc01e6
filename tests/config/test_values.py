"""Types and ranges of values, and what errors show of them."""

import math
import typing
from pathlib import Path

import numpy

from gspo.config.values import in_range, shown, type_name, type_of, typed

TABLE = dict[str, typing.Any]


def test_values_as_their_fields_have_them(subtests):
    table = {"a": {"b": [1, "x", True, 0.5]}}
    for value, hint, made in (
        (numpy.int64(3), int, 3),
        (numpy.float32(0.5), float, 0.5),
        (3, float, 3.0),
        ((1, 2), list[float], [1.0, 2.0]),
        (Path("a/b"), str, "a/b"),
        (None, int | None, None),
        (table, TABLE, table),
    ):
        with subtests.test(value=value):
            found = typed("k", value, hint)
            assert found == made and type(found) is type(made)


UNFIT = [
    ("k = nan: must be a finite number", (math.nan, float)),
    (r"k = 10+\.\.\.: must be a finite number", (10**400, float)),
    ("k = True: must be a whole number", (True, int)),
    ("k = '3': must be a number", ("3", float)),
    ("k = b'x': must be a string", (b"x", str)),
    (r"k\[1\] = 3: must be a string", (["a", 3], list[str])),
    ("k.a = None: a NoneType cannot be written into config.toml", ({"a": None}, TABLE)),
    (r"k.a\[0\] = <object .*: an object cannot be written", ({"a": [object()]}, TABLE)),
    ("k: the name 3 is an int, not a string", ({3: 1}, TABLE)),
]


def test_values_that_fit_no_field(refuses):
    refuses(lambda pair: typed("k", *pair), UNFIT)


def test_ranges_and_types_in_words(refuses):
    limits = {"low": 1, "high": 3, "choices": ("auto",)}
    for value in (1, 3, "auto", None, [1, 2]):
        in_range("k", value, limits)
    table = [
        ("k = 0: must be at least 1", 0),
        ("must be at most 3", 4),
        ("allowed are a number, auto, did you mean auto", "atuo"),
        (r"k\[1\] = 9: must be at most 3", [1, 9]),
    ]
    refuses(lambda value: in_range("k", value, limits), table)
    assert type_name(list[float] | None) == "a list of numbers or nothing"
    assert shown("x" * 1000) == "'" + "x" * 79 + "..." and [type_of(value) for value in (3, [])] == ["an int", "a list"]
