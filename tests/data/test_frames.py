"""What comes over a socket is data: bounded, timed, and never code."""

import math
import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gspo.data import frames
from gspo.data.frames import Frames, Junk, packed, unpacked


@pytest.fixture
def pair():
    ours, theirs = map(Frames, socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def test_messages_arrive_whole_and_in_order(pair):
    ours, theirs = pair
    large = bytes(range(256)) * 20_000  # more than a socket holds
    sender = threading.Thread(target=lambda: [theirs.send(data) for data in (b"", large, b"end")])
    sender.start()
    assert [ours.receive(10.0) for _ in range(3)] == [b"", large, b"end"]
    sender.join()


@pytest.mark.parametrize("sent", [b"", b"\0\0\0", struct.pack("!Q", 10), struct.pack("!Q", 10) + b"half"])
def test_half_a_message_ends_in_time_or_with_its_sender(pair, sent):
    ours, theirs = pair
    theirs.socket.sendall(sent)
    with pytest.raises(TimeoutError):
        ours.receive(0.05)
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive(10.0)


def test_a_sender_that_drips_does_not_outlast_the_limit(pair):
    ours, theirs = pair
    theirs.socket.sendall(struct.pack("!Q", 1000))
    done = threading.Event()

    def drip():
        while not done.wait(0.01):
            theirs.socket.sendall(b"x")

    sender = threading.Thread(target=drip)
    sender.start()
    with pytest.raises(TimeoutError):
        ours.receive(0.2)
    done.set()
    sender.join()


@pytest.mark.parametrize("size", [101, 1 << 40, (1 << 64) - 1])
def test_a_message_that_is_too_long_is_not_read(pair, size):
    ours, theirs = pair
    theirs.socket.sendall(struct.pack("!Q", size))
    with pytest.raises(Junk, match=f"a message of {size} bytes; 100 are allowed"):
        ours.receive(10.0, 100)


def test_a_receiver_that_takes_nothing_is_given_up(pair, monkeypatch):
    monkeypatch.setattr(frames, "STALLED", 0.05)
    with pytest.raises(TimeoutError):
        pair[1].send(bytes(10_000_000))


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


@given(plain)
def test_plain_data_keeps_its_types(value):
    assert typed(unpacked(packed(value))) == typed(value)


def test_numbers_that_json_has_not_arrive():
    found = unpacked(packed([math.inf, -math.inf, math.nan, 1e308, 5e-324, "\ud800"]))
    assert found[:2] == [math.inf, -math.inf] and found[2] != found[2] and found[3:] == [1e308, 5e-324, "\ud800"]


@pytest.mark.parametrize("value", [object(), b"bytes", [1j], {"a": print}])
def test_other_data_is_refused(value):
    with pytest.raises(ValueError, match="is no plain data"):
        packed(value)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x04K\x01.", b"{", b"[1,]", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000,
        b'{"!": "eval", "of": ["1"]}', b'{"!": "dict", "of": [[[1], 2]]}', b'{"!": "set"}', b'{"!": "dict", "of": 3}',
        b'{"!": ["tuple"], "of": []}',
    ],
)  # fmt: skip
def test_junk_is_told_as_such(data):
    with pytest.raises(Junk, match="no message: "):
        unpacked(data)
