"""Detects images, sound and video among the columns of a row and the keys of a message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAMES = ("image", "images", "video", "videos", "audio", "audios", "pixel_values")
"""Keys that hold only media, in any case."""
_URI = re.compile(r"data:(?:image|video|audio)/", re.I)
_BEGINS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\x00", b"MM\x00*", b"OggS", b"fLaC", b"ID3")
_MODULES = ("PIL", "torchcodec", "torchvision", "soundfile", "decord", "av")


def is_media(name: str, value: Any) -> bool:
    """Whether the value under a key is media, by the key or by itself. Text counts only as a data: URI: other
    text may be for a reward.
    """
    return not _is_empty(value) and (name.lower() in NAMES or _holds(value))


def _is_empty(value: Any) -> bool:
    """Whether a cell is empty: None, of length 0, or NaN, as in pandas."""
    try:
        return len(value) == 0
    except TypeError:  # no length, such as a zero-dimensional array
        return value is None or bool(value != value)


def _holds(value: Any) -> bool:
    if isinstance(value, str):
        return bool(_URI.match(value))
    if isinstance(value, bytes):
        return value.startswith(_BEGINS) or value[4:8] == b"ftyp"
    if isinstance(value, Mapping):  # as the library datasets encodes and decodes media
        encoded = isinstance(value.get("bytes"), bytes) or {"array", "sampling_rate"} <= set(value)
        return encoded or any(map(_holds, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds, value))
    return type(value).__module__.partition(".")[0] in _MODULES
