"""Detects images, sound and video: by the value itself, and by the key's name if the value is only text or numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAMES = ("image", "images", "video", "videos", "audio", "audios", "pixel_values")
"""Keys that hold only media, in any case."""
_WORDS = {"image", "images", "img", "imgs", "picture", "pictures", "photo", "photos", "video", "videos", "audio", "audios"}
_FILE = re.compile(r"\S+\.(?:png|jpe?g|gif|webp|bmp|tiff?|svg|mp4|webm|mov|avi|mkv|wav|mp3|flac|ogg|m4a)(?:[?#]\S*)?", re.I)
_URI = re.compile(r"data:(?:image|video|audio)/", re.I)
_BEGINS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\x00", b"MM\x00*", b"OggS", b"fLaC", b"ID3")
_MODULES = ("PIL", "torchcodec", "torchvision", "soundfile", "decord", "av")


def is_media(name: str, value: Any) -> bool:
    """Whether the value under a key is media. Text counts only as a data: URI, or as a file name under a key such as
    image_path: other text there may be meant for a reward.
    """
    if is_empty(value):
        return False
    return name.lower() in NAMES or _holds(value, bool(_WORDS & set(re.split(r"[^a-z]+", name.lower()))))


def is_empty(value: Any) -> bool:
    """Whether a cell is empty: None, of length 0, or NaN, as in pandas."""
    try:
        return len(value) == 0
    except TypeError:  # no length, such as a zero-dimensional array
        return value is None or bool(value != value)


def _holds(value: Any, named: bool, depth: int = 8) -> bool:
    """Whether a value is or contains media. named: The key denotes media, so a file name counts. depth: Maximum nesting."""
    if not depth:
        return False
    if isinstance(value, str):
        return bool(_URI.match(value) or (named and _FILE.fullmatch(value.strip())))
    if isinstance(value, (bytes, bytearray, memoryview)):
        begins = bytes(value[:12])
        return named or begins.startswith(_BEGINS) or begins[4:8] == b"ftyp"
    if isinstance(value, Mapping):
        if isinstance(value.get("bytes"), (bytes, bytearray)) or {"array", "sampling_rate"} <= set(value):
            return True  # media of the library datasets, encoded and decoded
        return any(_holds(item, named, depth - 1) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds(item, named, depth - 1) for item in value)
    return any(kind.__module__.partition(".")[0] in _MODULES for kind in type(value).__mro__) or (
        named and getattr(value, "ndim", 0) >= 2
    )
