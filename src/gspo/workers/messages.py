"""Messages between processes: a length and so many bytes over a socket. Imports no torch.

What a worker sends is read as data and never as code: a grader may write into its socket what it likes.
"""

from __future__ import annotations

import math
import socket
import struct
import time

from gspo.workers.json_codec import Junk

HEADER = struct.Struct("!Q")
PIECE = 1 << 20
"""Bytes that one call reads, so that memory grows with what arrives and not with what a header announces."""
STALLED = 60.0
"""Seconds for which the other side may take nothing of what it is sent."""


class Frames:
    """Messages over one end of a pair of sockets. After an error no further message can be read."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def fileno(self) -> int:
        """The number of its file descriptor."""
        return self.socket.fileno()

    def send(self, data: bytes) -> None:
        """Raises OSError when the other side has ended, TimeoutError when it takes nothing for STALLED seconds."""
        self.socket.settimeout(STALLED)
        for part in (memoryview(HEADER.pack(len(data))), memoryview(data)):
            sent = 0
            while sent < len(part):
                sent += self.socket.send(part[sent : sent + PIECE])

    def receive(self, seconds: float | None = None, most: int | None = None) -> bytes:
        """The next message. seconds: for all of it; None: wait for ever. most: bytes that it may have; None: any number.

        Raises TimeoutError, Junk for a message that is too long, and OSError or EOFError when the other side has ended.
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

    __del__ = close  # quietly: an end may be left to be collected
