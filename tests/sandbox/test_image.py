"""The image is made once, shared by all, and evicted when nobody uses it."""

import os
import subprocess
import sys
import tempfile
import time

import pytest

from gspo.sandbox import image


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(image, "_cache", lambda: tmp_path)
    return tmp_path


def test_it_is_made_once_and_holds_our_modules_alone(cache):
    first = image.SandboxImage(sys.executable)
    stamp = first.folder.stat().st_ino
    assert image.SandboxImage(sys.executable).folder.stat().st_ino == stamp
    assert [path.name for path in cache.iterdir()] == [first.folder.name]
    modules = sorted(str(p.relative_to(first.folder / "modules")) for p in first.folder.rglob("*.py") if p.stat().st_size)
    assert modules == sorted(image.MODULES)
    assert all(path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644) for path in first.folder.rglob("*"))


def test_two_processes_may_make_it_at_the_same_time(cache):
    code = f"from pathlib import Path\nfrom gspo.sandbox import image\nimage._cache = lambda: Path({str(cache)!r})\n"
    code += "import sys; print(image.SandboxImage(sys.executable).folder)"
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {process.communicate()[0].strip() for process in processes}
    assert len(folders) == 1 and [str(path) for path in cache.iterdir()] == [*folders]


def test_other_modules_or_another_python_make_another(cache, tmp_path, monkeypatch):
    first = image.SandboxImage(sys.executable).folder
    other = tmp_path / "other-python"
    other.symlink_to("/bin/true")
    assert image.SandboxImage(str(other)).folder != first
    monkeypatch.setattr(image, "MODULES", image.MODULES[:2])
    assert image.SandboxImage(sys.executable).folder != first


def test_images_that_nobody_uses_and_folders_of_killed_processes_are_removed(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(image, "_cache", lambda: tmp_path / "cache")
    ages = {"cache/old": 2 * image.UNUSED, "cache/new": 0, "tmp/gspo-scratch-1-a": 2 * image.DAY, "tmp/gspo-scratch-1-b": 9}
    for name, age in ages.items():
        (tmp_path / name / "test1").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert image.SandboxImage(sys.executable).folder.is_dir()
    assert [(tmp_path / name).exists() for name in ages] == [False, True, False, True]
    with image.scratch(os.getuid()) as folder:
        assert os.listdir(folder) == []
    assert not os.path.exists(folder)
