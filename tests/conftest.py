"""What all tests share: draws and threads. Which of them run, and in how many processes, is tools/suite's."""

import os
import random
import signal

import pytest

from tests.required import check_required

pytest_plugins = ["tools.suite.plugin"]

# Tiny models run faster on one thread, above all beside others; what the tests start inherits it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Under nohup, or in the background of a shell, these are ignored, and so they would be in all that the tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests against a real vLLM server need an environment that has it: `make test-vllm`.
collect_ignore = [] if "GSPO_VLLM_PYTHON" in os.environ else ["backends/vllm/engine"]


def pytest_configure():
    check_required(os.environ.get("GSPO_REQUIRE", ""))


def pytest_collection_finish(session):
    """Before workers are forked: what the first test of each would import."""
    if session.config.option.workers:
        import torch

        import tests.warm  # noqa: F401

        torch.testing.assert_close(torch.ones(1), torch.ones(1))


def seed():
    import numpy as np  # late: torch reads OMP_NUM_THREADS as it is imported
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def pytest_collectstart(collector):
    """What a file draws while it is read is the same each time, too."""
    if isinstance(collector, pytest.Module):
        seed()


@pytest.fixture
def all_installed(monkeypatch):
    """As if every optional package were installed."""
    monkeypatch.setattr("gspo.config.needs.installed", lambda package: True)


@pytest.fixture(autouse=True)
def seeded():
    """What a test draws is the same each time, alone and among others."""
    seed()
