"""Tests of a library that is not there are skipped; in an environment that was made for it they must not be.

GSPO_REQUIRE names what must be there, with commas in between: the Makefile sets it.
"""

import importlib

import pytest


def check_required(wanted):
    """Raises UsageError, which fails the whole run, where a library is not there or cannot be imported."""
    for name in filter(None, wanted.split(",")):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise pytest.UsageError(
                f"GSPO_REQUIRE = {wanted!r}: {name} cannot be imported, so its tests would be skipped: {error}"
            ) from error
