"""Tests against a real vLLM server need an environment that has it: `make test-vllm`. How all others come to an end soon."""

import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.required import check_required
from tests.slow import runs

# Tiny models run faster on one thread, above all beside others; what the tests start inherits it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Under nohup, or in the background of a shell, these are ignored, and so they would be in all that the tests start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = [] if "GSPO_VLLM_PYTHON" in os.environ else ["backends/vllm/engine"]

# Files with tests that take long. They come first: at the end nobody waits for one of them.
LONG = (
    "study/test_compare", "training/test_state", "training/test_trainer", "training/test_step",
    "training/test_guard", "training/test_likelihoods", "serving/test_fuzz", "serving/test_lost", "hf/test_narrow",
    "serving/test_model", "learner/test_memory", "learner/test_objective", "learner/test_ppo", "agents/test_token_tree",
    "test_cli", "demo/test_stages", "hf/test_routers", "hf/test_sharded", "build/test_launch", "build/test_crew",
    "build/test_faults", "build/test_smaller", "build/test_four_ranks", "build/test_staged_ranks", "build/test_ends",
    "build/test_copies", "build/test_heartbeat", "build/test_torchrun", "build/test_episodes_on_ranks",
    "build/test_on_a_device", "build/test_scorers", "rewards/test_compiler",
    "vllm/test_fleet", "vllm/test_transfer", "vllm/test_welcome", "rollout/test_asynchronous_episodes", "hf/test_on_paper",
    "hf/test_fake_device", "test_gpu_suite", "test_together",
)  # fmt: skip


def pytest_configure():
    check_required(os.environ.get("GSPO_REQUIRE", ""))


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


@pytest.fixture(autouse=True)
def seeded():
    """What a test draws is the same each time, alone and among others."""
    seed()


def pytest_collection_modifyitems(config, items):
    wanted = os.environ.get("SLOW", "")
    left_out = [item for item in items if item.get_closest_marker("slow") and not runs(item.nodeid, wanted)]
    config.hook.pytest_deselected(items=left_out)
    kept = [item for item in items if item not in left_out]
    items[:] = sorted(kept, key=lambda item: not any(name in item.nodeid for name in LONG))


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
