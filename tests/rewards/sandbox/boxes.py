"""The sandboxes that this machine has, for tests to run in each of them."""

import functools

import pytest

from gspo.rewards.sandbox.open import open_sandbox

SUM = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"


@functools.cache
def opened(driver):
    """The sandbox, kept open for all tests of this process, or why there is none."""
    try:
        return open_sandbox(driver)
    except RuntimeError as error:
        return str(error)


def box_of(driver):
    """That sandbox. The test is skipped where there is none."""
    sandbox = opened(driver)
    if isinstance(sandbox, str):
        pytest.skip(f"the sandbox {driver} is not there: {sandbox}")
    return sandbox
