"""What is not on this machine is said before torch is imported."""

import subprocess
import sys

import pytest

from gspo.cli.places import check_places, check_run_folder
from gspo.config.files import from_dict
from gspo.config.source_kind import GIVEN
from gspo.runs.folder import RunFolder

OBJECT = "it was an object of a Python call.*use gspo.evaluate, or set --"
ABSENT = [
    (r"model.path = './none': no such folder", {"model": {"path": "./none"}}),
    ("task.source = 'none.jsonl': there is no such file in .*, did you mean nine.jsonl", {"task": {"source": "none.jsonl"}}),
    ("task.eval_source = 'none.csv': there is no such file", {"task": {"eval_source": "none.csv"}}),
    ("task.source = 'nowhere_mod:rows': there is no module 'nowhere_mod'", {"task": {"source": "nowhere_mod:rows"}}),
    (
        "task.source = 'a/rows.py:new': expected a module, not its file: write a.rows:new",
        {"task": {"source": "a/rows.py:new"}},
    ),
    ("reward.functions = 'nowhere_mod:f': there is no module", {"reward": {"functions": ["exact", "nowhere_mod:f"]}}),
    (rf"task.source = '\(given from Python\)': {OBJECT}task.source and --reward.functions", {"task": {"source": GIVEN}}),
    (rf"model.path = '\(given from Python\)': {OBJECT}model.path", {"model": {"path": GIVEN}}),
]


def made(**sections):
    here = {"model": {"path": "somebody/model"}, "task": {"source": "nine.jsonl"}, "reward": {"functions": ["exact"]}}
    return from_dict({name: here.get(name, {}) | sections.get(name, {}) for name in here})


def test_what_is_not_there_is_refused(tmp_path, monkeypatch, subtests):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nine.jsonl").touch()
    for message, sections in ABSENT:
        with subtests.test(message=message), pytest.raises(ValueError, match=message):
            check_places(made(**sections), "eval")
    check_places(made(), "eval")
    check_places(made(model={"path": "./none"}), "train", resume=True)  # its checkpoint has the model
    check_places(made(reward={"functions": ["nowhere_mod:f"]}), "sft")
    (tmp_path / "own_task.py").write_text("1 / 0")  # found, and not imported
    check_places(made(task={"source": "own_task:rows"}, reward={"functions": ["own_task:score"]}), "train")


def test_a_run_folder_that_is_in_use_or_in_the_way(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"is a file; give another log\.dir"):
        check_run_folder(str(tmp_path / "file"), False)
    with RunFolder.create(tmp_path / "run", ""):
        for resume in (False, True):
            with pytest.raises(RuntimeError, match="another process is writing to this run folder"):
                check_run_folder(str(tmp_path / "run"), resume)
    check_run_folder(str(tmp_path / "run"), True)
    check_run_folder(str(tmp_path / "new"), False)
    assert not (tmp_path / "new").exists()


def test_these_checks_import_no_torch():
    code = "import sys, gspo.cli.main, gspo.cli.places, gspo.launch.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
