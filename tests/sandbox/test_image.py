"""The kit is made once, shared by all, and leaves nothing behind where a process is killed."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def test_kits_that_nobody_uses_are_removed(cache, monkeypatch):
    old, new = cache / "old", cache / "new"
    for folder, age in ((old, 2 * image.UNUSED), (new, 0)):
        folder.mkdir()
        os.utime(folder, (time.time() - age,) * 2)
    mine = image.SandboxImage(sys.executable).folder
    assert mine.is_dir() and new.is_dir() and not old.exists()


IN_USE = """
import os, sys
from gspo.sandbox import image
os.getpid = lambda: int(sys.argv[1])
with image.scratch(os.getuid()) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_folders_of_killed_processes_are_removed(cache, tmp_path, monkeypatch):
    """And not those of living ones, in another container too: their numbers say nothing here."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(image, "YOUNG", 1e6)
    nobody = subprocess.Popen(["/bin/true"])
    nobody.wait()
    words, place = [sys.executable, "-c", IN_USE, str(nobody.pid)], os.environ | {"TMPDIR": str(tmp_path)}
    processes = [subprocess.Popen(words, stdin=-1, stdout=-1, text=True, env=place) for _ in range(3)]
    try:
        killed, ended, living = folders = [Path(process.stdout.readline().strip()) for process in processes]
        assert all(folder.is_dir() for folder in folders)
        processes[0].kill()
        processes[0].communicate()
        processes[1].communicate("")
        image.SandboxImage(sys.executable)
        assert killed.is_dir() and not ended.exists()  # it is too young to tell
        for folder in (killed, living):
            os.utime(folder, (time.time() - 2 * image.YOUNG,) * 2)
        image.SandboxImage(sys.executable)
        assert living.is_dir() and not killed.exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.skipif(bool(image.no_compiler()), reason=image.no_compiler())
def test_a_compiler_that_works_without_an_end_is_given_up(cache, monkeypatch):
    """By its processor time: on a busy machine the header may take minutes."""
    monkeypatch.setattr(image, "LONGEST", 1)
    monkeypatch.setattr(image, "BACKSTOP", 1e6)
    with pytest.raises(RuntimeError, match=r"g\+\+ cannot compile <bits/stdc\+\+\.h>: .*CPU time limit exceeded"):
        image.SandboxImage(sys.executable).header()


def test_without_a_compiler_the_package_is_named(cache, monkeypatch):
    monkeypatch.setattr(image, "COMPILER", "/no/g++")
    with pytest.raises(RuntimeError, match=r"need /no/g\+\+: install the package g\+\+"):
        image.SandboxImage(sys.executable).header()
