"""Which tests of minutes are run: those that are marked slow have shorter ones of their kind beside them.

SLOW, of the environment or of make: nothing or 0 runs none, 1 all, and 2/8 the third of eight shares: CI takes one a day.
"""

import re
import zlib

import pytest


def runs(nodeid, wanted):
    """Whether a slow test is run. Raises UsageError where `wanted` is no such value."""
    if wanted in ("", "0", "1"):
        return wanted == "1"
    if not re.fullmatch(r"\d+/[1-9]\d*", wanted):
        raise pytest.UsageError(f"SLOW = {wanted!r}: give 1 for all slow tests, 0 for none, or a share of them like 2/8")
    number, shares = map(int, wanted.split("/"))
    return zlib.crc32(nodeid.encode()) % shares == number % shares
