"""vLLM in the trainer's process."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.backends.vllm.engine.servers import PYTHON

ROOT = Path(__file__).resolve().parents[4]


def facts_of(*arguments):
    """The lines that tests/backends/vllm/engine/inside.py prints, merged by key into lists."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [PYTHON, "-m", "tests.backends.vllm.engine.inside", *arguments]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400)
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    print(ended.stdout[-4000:], ended.stderr[-4000:])
    assert ended.returncode == 0
    facts = {}
    for line in lines:
        for key, value in line.items():
            facts.setdefault(key, []).append(value)
    return facts


@pytest.mark.parametrize("name", ["moe", pytest.param("dense", marks=pytest.mark.slow)])
def test_updates_interruptions_and_a_lost_engine(name):
    facts = facts_of("updates", name)
    assert len(facts["gap"]) == 3 and max(facts["gap"]) < 4e-5
    assert facts["slept"] == [True] and facts["versions"][0] > 1 and facts["whole"] == [True]
    assert (
        facts["again"] == [8]
        and "started again (failure 1 in a row): vLLM, in this process: RuntimeError: out of memory" in facts["said"][0][0]
    )
    assert facts["stale"] == ["vLLM and the trainer disagree about version "[:40]]


@pytest.mark.slow
def test_an_adapter():
    facts = facts_of("adapter")
    assert facts["adapters"] == [True, True] and max(facts["gap"]) < 4e-5


@pytest.mark.slow
def test_a_run(tmp_path):
    facts = facts_of("run", str(tmp_path / "run"))
    assert facts["step"] == [1, 2, 3, 4]
    assert max(facts["volatility"]) == 0 and max(facts["kl"]) < 1e-8
