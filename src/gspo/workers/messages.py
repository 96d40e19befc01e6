"""Messages between processes: length-prefixed bytes over a socket. Imports no torch.

A worker's messages are parsed as data and never executed: a grader may write anything into its socket.
"""

from __future__ import annotations

import math
import socket
import struct
import time

from gspo.workers.json_codec import Junk

HEADER = struct.Struct("!Q")
PIECE = 1 << 20
"""Bytes per read, so that memory grows with the data received and not with the length that a header claims."""
STALLED = 60.0
"""Send timeout in seconds, while the other side reads nothing."""


class Frames:
    """Messages over one end of a socket pair. After an error no further message can be read."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def fileno(self) -> int:
        """Its file descriptor."""
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        """Sends a message. Raises OSError if the other side has ended, TimeoutError if it stalls for STALLED seconds."""
        self.socket.settimeout(STALLED)
        for part in (memoryview(HEADER.pack(len(data))), memoryview(data)):
            sent = 0
            while sent < len(part):
                sent += self.socket.send(part[sent : sent + PIECE])

    def receive(self, seconds: float | None = None, most: int | None = None) -> bytes:
        """The next message. seconds: timeout for the whole message; None: no timeout. most: maximum size in bytes; None: no
        limit.

        Raises TimeoutError, Junk if the message is too long, and OSError or EOFError if the other side has ended.
        """
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        (size,) = HEADER.unpack(self._read(HEADER.size, deadline))
        if most is not None and size > most:
            raise Junk(f"a message of {size} bytes; {most} are allowed")
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self.socket.settimeout(None if left == math.inf else left)
            piece = self.socket.recv(min(PIECE, size - len(data)))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    def close(self) -> None:
        """Closes this end."""
        self.socket.close()

    __del__ = close  # no ResourceWarning: an end may be left to the garbage collector
