import json
import os

import pytest

from tests.tiny_run import ROWS, model


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)  # before what this process runs
    model().save("tiny")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "letters.py").write_text(
        "def likes_a(prompts, completions, **columns):\n    return [c.count('a') / max(1, len(c)) for c in completions]\n"
    )
    return tmp_path
