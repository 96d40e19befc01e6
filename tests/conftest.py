"""What all tests share: draws, threads, figures. Which of them run, and in how many processes, is tools/suite's."""

import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

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


@pytest.fixture(autouse=True, scope="session")
def every_figure(tmp_path_factory):
    """The reports of runs with the same metrics show the same figures, those of the first such run of this process: to draw
    them takes longer than a tiny run. Yields what draws them, for tests/report, which has all of its own drawn.
    """
    from gspo.report import plots
    from gspo.report.read import read_run

    drawn = {}

    def draw(folders):
        if len(folders) > 1:
            return every(folders)
        lines = read_run(folders[0]).lines
        kind = len(lines) > 1, frozenset(name for line in lines for name in line)
        if kind not in drawn:
            drawn[kind] = every(folders, tmp_path_factory.mktemp("figures"))
        out = Path(folders[0]) / "figures"
        out.mkdir(exist_ok=True)
        shown = ((d, Path(shutil.copy(d.light, out)), Path(shutil.copy(d.dark, out))) for d in drawn[kind])
        return [replace(d, light=light, dark=dark) for d, light, dark in shown]

    every = plots.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw", draw)
        yield every
