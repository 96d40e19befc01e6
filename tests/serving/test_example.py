"""The agent of examples/agent.py."""

import asyncio
import importlib.util
from pathlib import Path

FILE = Path(__file__).parents[2] / "examples" / "agent.py"


def test_the_example_runs(tmp_path):
    spec = importlib.util.spec_from_file_location("example_agent", FILE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    shares = asyncio.run(example.main(1, 0, str(tmp_path / "run"), imitate=2))
    assert len(shares) == 2 and all(0 <= share <= 1 for share in shares)
    assert (tmp_path / "run" / "report.html").exists()
