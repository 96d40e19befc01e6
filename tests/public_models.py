"""Public models by their sizes alone, without weights: those of docs/on_paper.py."""

import json
import runpy
from pathlib import Path

PAPER = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "on_paper.py"))


def folder_of(parent, name):
    """A folder with the model's config.json alone."""
    folder = Path(parent) / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(PAPER["QWEN3_MOE"] | PAPER["SIZES"][name]))
    return str(folder)
