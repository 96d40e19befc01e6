"""Types and ranges of values: every numeric field against numbers of every size, and what errors show of them."""

import dataclasses
import typing
from pathlib import Path

import numpy

from gspo.config.files import from_dict
from gspo.config.schema import SECTIONS
from gspo.config.values import alternatives, in_range, shown, type_name, type_of, typed

TABLE = dict[str, typing.Any]
NUMERIC = [
    (f"{name}.{field.name}", field, hint)
    for name, cls in SECTIONS.items()
    for field in dataclasses.fields(cls)
    for hint in [typing.get_type_hints(cls)[field.name]]
    if {int, float, list[float]} & set(alternatives(hint))
]
ODD = [
    1e308, -1e308, 1e-320, -1e-320, 5e-324, float("nan"), float("inf"), -float("inf"), 0, -1, 4_000_000_000, 2**31, 2**64,
    10**400,
]  # fmt: skip


def test_a_number_of_any_size_is_in_a_sane_range_or_refused(subtests):
    for key, field, hint in NUMERIC:
        with subtests.test(key=key):
            limits, (section, name) = field.metadata, key.split(".")
            assert limits["low"] is not None and limits["high"] is not None
            for value in ODD:
                try:
                    made = from_dict({section: {name: [value] if list[float] in alternatives(hint) else value}})
                except ValueError as error:
                    assert str(error).startswith(key) and len(str(error)) < 300, str(error)
                    continue
                number = getattr(getattr(made, section), name)
                for one in number if isinstance(number, list) else [number]:
                    assert one is None or isinstance(one, str) or abs(one) <= limits["high"] <= 1e12
                    harmless = limits["low"] <= 0  # 0 itself is allowed, and so is what rounds to it
                    assert not isinstance(one, float) or harmless or abs(one) > 1e-30


def test_seeds_are_bounded_alike():
    highs = {field.metadata["high"] for key, field, _ in NUMERIC if key.endswith(".seed")}
    assert highs == {2**32 - 1}


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
    ("k = True: expected a whole number, got bool", (True, int)),
    ("k = '3': expected a number, got str", ("3", float)),
    ("k = b'x': expected a string, got bytes", (b"x", str)),
    (r"k\[1\] = 3: expected a string, got int", (["a", 3], list[str])),
    ("k.a = None: a NoneType cannot be written into config.toml", ({"a": None}, TABLE)),
    (r"k.a\[0\] = <object .*: an object cannot be written", ({"a": [object()]}, TABLE)),
    ("k: the name 3 is an int, not a string", ({3: 1}, TABLE)),
]


def test_values_that_fit_no_field(refuses):
    refuses(lambda pair: typed("k", *pair), UNFIT)


def test_errors_show_a_value_in_a_short_line():
    assert shown("x" * 1000) == "'" + "x" * 79 + "..."


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


def test_the_type_of_a_value_has_its_article():
    assert [type_of(value) for value in (3, [], None, 1j, OSError())] == [
        "an int", "a list", "a NoneType", "a complex", "an OSError",
    ]  # fmt: skip
