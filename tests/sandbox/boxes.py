"""The sandboxes that this machine has, for tests to run in each of them."""

import dataclasses
import functools
import os
import shutil
import subprocess

import pytest

from gspo.sandbox import drivers
from gspo.sandbox.image import COMPILER
from gspo.sandbox.open import open_sandbox

compiler = pytest.mark.skipif(not os.path.exists(COMPILER), reason=f"there is no {COMPILER}: install the package g++")
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


def of_abi(monkeypatch, version):
    """The sandbox of a kernel with this version of Landlock, which has its rights alone."""
    given, box = drivers.interpreter, box_of("landlock")

    def simulated(*arguments):
        *words, code = given(*arguments)
        return [*words, code.replace("runner.main()", f"runner.confine.abi = lambda: {version}; runner.main()")]

    monkeypatch.setattr(drivers, "interpreter", simulated)
    return box


def without_compiler():
    """Words before a command that runs it where the sandbox's compiler is not there; the test is skipped where that needs
    more rights than there are.
    """
    if not os.path.exists(COMPILER):
        return []
    names = [] if os.geteuid() == 0 else ["--map-root-user"]
    hide = f'mount --bind /dev/null "$(readlink -f {COMPILER})" && exec "$@"'
    words = ["unshare", "--mount", *names, "sh", "-c", hide, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False, capture_output=True).returncode:
        pytest.skip("a mount namespace, in which there is no compiler, cannot be made here")
    return words


def in_time(limits, words):
    """Ample time where, by its words, another limit must end the program: beside others it takes more of the processor."""
    return limits if "timeout" in words else dataclasses.replace(limits, seconds=8.0)
