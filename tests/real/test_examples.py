"""The README's ten lines and the notebook, as their readers run them, but each for one small step."""

import re
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
SMALL = {"steps": 1, "num_prompts": 4, "num_generations": 2}


def shortened(source):
    for name, value in SMALL.items():
        source = re.sub(rf'("{name}"): \d+', rf"\1: {value}", source)
    return source


def test_ten_lines(pretrained, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(shortened((ROOT / "examples/ten_lines.py").read_text()), {"__name__": "ten_lines"})
    printed = capsys.readouterr().out
    assert re.search(r"^step 1/1  reward [\d.]+", printed, re.M) and "Result('runs/run', finished: step = 1" in printed
    assert (tmp_path / "runs/run/report.html").is_file()


def test_the_notebook(pretrained, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(ROOT / "examples/smollm2.ipynb", as_version=4)
    for cell in book.cells:
        cell.source = shortened(cell.source)
    nbclient.NotebookClient(book, timeout=PATIENCE, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert {output.output_type for output in outputs} == {"stream", "execute_result"}  # no widget, no empty output
    texts = [output.get("text") or output["data"].get("text/plain", "") for output in outputs]
    assert not any("Warning" in text for text in texts)
    assert any(text.startswith("step 1/1  reward ") for text in texts)  # progress
    pages = [output["data"]["text/html"] for output in outputs if output.output_type == "execute_result"]
    assert len(pages) == 1 and '<img alt="reward"' in pages[0] and 'href="runs/notebook/report.html"' in pages[0]
    assert (tmp_path / "runs/notebook/report.html").is_file()
    assert len(re.findall(r"^right: \d+% of 30$", "\n".join(texts), re.M)) == 2  # before and after
