"""What comes over a socket is data: bounded, timed, and never code."""

import socket
import struct
import threading

import pytest

from gspo.workers import messages
from gspo.workers.json_codec import Junk
from gspo.workers.messages import Frames
from tests.patience import PATIENCE


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
    assert [ours.receive(PATIENCE) for _ in range(3)] == [b"", large, b"end"]
    sender.join()


@pytest.mark.parametrize("sent", [b"", b"\0\0\0", struct.pack("!Q", 10), struct.pack("!Q", 10) + b"half"])
def test_half_a_message_ends_in_time_or_with_its_sender(pair, sent):
    ours, theirs = pair
    theirs.socket.sendall(sent)
    with pytest.raises(TimeoutError):
        ours.receive(0.05)
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive(PATIENCE)


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
        ours.receive(PATIENCE, 100)


def test_a_receiver_that_takes_nothing_is_given_up(pair, monkeypatch):
    monkeypatch.setattr(messages, "STALLED", 0.05)
    with pytest.raises(TimeoutError):
        pair[1].send(bytes(10_000_000))
