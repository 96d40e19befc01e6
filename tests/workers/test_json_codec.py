"""Plain data keeps its types on its way, and nothing else gets through."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.workers.json_codec import packed, unpacked

keys = st.text(max_size=3) | st.integers() | st.booleans() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
        | st.dictionaries(st.just("!") | st.just("of"), inner)
        | st.sets(keys, max_size=3)
    ),
    max_leaves=12,
)


def typed(value):
    """A value with the types of all that is in it."""
    if isinstance(value, dict):
        return dict, [(typed(k), typed(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    return type(value), value


@settings(deadline=None)
@given(plain)
def test_plain_data_keeps_its_types(value):
    assert typed(unpacked(packed(value))) == typed(value)


def test_numbers_that_json_has_not_arrive():
    found = unpacked(packed([math.inf, -math.inf, math.nan, 1e308, 5e-324, "\ud800"]))
    assert found[:2] == [math.inf, -math.inf] and found[2] != found[2] and found[3:] == [1e308, 5e-324, "\ud800"]
    long = [10**5000, {-(10**5000)}]  # Python reads no more than 4300 digits
    assert unpacked(packed(long)) == long


JUNK = [
    b"", b"\x80\x04K\x01.", b"{", b"[1,]", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000,
    b'{"!": "eval", "of": ["1"]}', b'{"!": "dict", "of": [[[1], 2]]}', b'{"!": "set"}', b'{"!": "dict", "of": 3}',
    b'{"!": ["tuple"], "of": []}', b'{"!": "int", "of": 3}', b'{"!": "int", "of": "x"}',
]  # fmt: skip


@pytest.mark.parametrize("kind", ["set", "dict"])
def test_keys_that_all_hash_alike_are_refused_and_not_compared_one_by_one(kind):
    keys = [(2**61 - 1) * i for i in range(1, 20_000)]  # each has the hash 0
    data = json.dumps({"!": kind, "of": keys if kind == "set" else [[key, 0] for key in keys]}).encode()
    begin = time.process_time()
    with pytest.raises(ValueError, match="no message: "):
        unpacked(data)
    assert time.process_time() - begin < 5  # it was half a minute for twice as many


def test_other_data_is_refused(subtests):
    for value in (object(), b"bytes", [1j], {"a": print}):
        with subtests.test(value=value), pytest.raises(ValueError, match="is no plain data"):
            packed(value)
    for data in JUNK:
        with subtests.test(data=data[:40]), pytest.raises(ValueError, match="no message: "):
            unpacked(data)
