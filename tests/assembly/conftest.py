"""Runs on ranks, as those of tests/launch."""

from tests.launch.conftest import place, unbroken

__all__ = ["place", "unbroken"]
