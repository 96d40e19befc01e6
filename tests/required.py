"""Tests of a library that is not there are skipped; in an environment that was made for it they must not be.

GSPO_REQUIRE names what must be there, with commas in between: the Makefile sets it.
"""

import subprocess
import sys

import pytest


def check_required(wanted):
    """Raises UsageError, which fails the whole run, where a library is not there or cannot be imported. In a process of
    its own: Ray reads its environment when it is imported, and tests set that later.
    """
    for name in filter(None, wanted.split(",")):
        ended = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True)
        if ended.returncode:
            raise pytest.UsageError(
                f"GSPO_REQUIRE = {wanted!r}: {name} cannot be imported, so its tests would be skipped:\n{ended.stderr}"
            )
