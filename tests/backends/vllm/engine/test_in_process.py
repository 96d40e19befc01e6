"""vLLM in the trainer's process."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.backends.vllm.engine.servers import PYTHON

ROOT = Path(__file__).resolve().parents[4]


def found_by(*arguments):
    """The lines that tests/backends/vllm/engine/inside.py prints, merged by key into lists."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [PYTHON, "-m", "tests.backends.vllm.engine.inside", *arguments]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    print(ended.stdout[-4000:], ended.stderr[-4000:])
    assert ended.returncode == 0
    found = {}
    for line in lines:
        for key, value in line.items():
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", ["moe", "dense"])
def test_updates_interruptions_and_a_lost_engine(name):
    found = found_by("updates", name)
    assert len(found["gap"]) == 3 and max(found["gap"]) < 4e-5
    assert found["versions"][0] > 1 and found["whole"] == [True]
    assert (
        found["again"] == [8] and "started again: vLLM, in this process: RuntimeError: out of memory" in found["said"][0][0]
    )
    assert found["stale"] == ["vLLM and the trainer disagree about version "[:40]]


def test_an_adapter():
    found = found_by("adapter")
    assert found["adapters"] == [True, True] and max(found["gap"]) < 4e-5


def test_a_run(tmp_path):
    found = found_by("run", str(tmp_path / "run"))
    assert found["step"] == [1, 2, 3, 4]
    assert max(found["volatility"]) == 0 and max(found["kl"]) < 1e-8
