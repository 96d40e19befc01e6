"""The run's log takes the warnings of gspo's own code, wherever in the package it stands, and no others."""

import warnings
from pathlib import Path

import pytest

import gspo
from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog
from gspo.runs.open import warnings_to

PACKAGE = Path(gspo.__file__).parent
FOLDERS = sorted({path.parent for path in PACKAGE.rglob("*.py")})


def logged(folder, *places, category=UserWarning):
    """The texts of events.jsonl after a warning from each file of `places`."""
    with RunFolder.create(folder, "") as run, RunLog(run) as log, warnings_to(log):
        warnings.simplefilter("always")
        for place in places:
            warnings.warn_explicit(f"from {place}", category, str(place), 1)
        return (run.path / "events.jsonl").read_text()


def test_all_packages_are_looked_through():
    names = {folder.relative_to(PACKAGE).parts[0] for folder in FOLDERS if folder != PACKAGE}
    assert names >= {
        *("config", "data", "rewards", "agents", "rollout", "learner", "backends", "training", "runs", "report", "build"),
        *("serving", "study", "objective", "demo"),
    }


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(PACKAGE.parent).as_posix())
def test_a_warning_of_each_package_is_logged(tmp_path, folder):
    place = folder / "some.py"
    assert f"from {place}" in logged(tmp_path / "run", place)


def test_other_warnings_are_not(tmp_path, recwarn):
    libraries = PACKAGE.parent / "transformers" / "some.py", PACKAGE.with_name("gspo_more") / "some.py", Path("some.py")
    assert logged(tmp_path / "run", *libraries) == ""
    assert logged(tmp_path / "again", PACKAGE / "some.py", category=ResourceWarning) == ""
    assert [str(warning.message) for warning in recwarn] == [f"from {place}" for place in (*libraries, PACKAGE / "some.py")]


def test_afterwards_warnings_are_shown_as_before(tmp_path):
    show = warnings.showwarning
    logged(tmp_path / "run", PACKAGE / "some.py")
    assert warnings.showwarning is show
