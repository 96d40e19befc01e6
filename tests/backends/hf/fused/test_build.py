"""The library: compiled once, by what is there, and kept where it is safe."""

import multiprocessing
import os
import shutil
import threading

import pytest

from gspo.backends.hf.fused import build
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler here")


def asked():
    """Whether there is a library, and why not."""
    return build.library() is not None, build.missing()


def told(folder, ask=asked, **changes):
    """What a process says that has looked for no library yet. It is forked off this one, which has imported torch."""

    def answer():
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache")} | changes
        build._outcome.cache_clear()
        said.put(ask())

    processes = multiprocessing.get_context("fork")
    said = processes.SimpleQueue()
    process = processes.Process(target=answer)
    process.start()
    process.join(PATIENCE)
    process.kill()
    assert process.exitcode == 0
    return said.get()


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def race():
    """What four threads of a process say that ask at once."""
    found = []
    threads = [threading.Thread(target=lambda: found.append(asked())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*found, asked()]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder whose cache has a library, compiled for such a race by its compiler, which writes an x in `count` each time;
    and what was said.
    """
    folder = tmp_path_factory.mktemp("compiled")
    real = build.shutil.which("g++") or build.shutil.which("clang++")
    script(folder / "compiler", f'case "$*" in *-shared*) echo x >> {folder}/count;; esac; exec {real} "$@"')
    return folder, told(folder, race, CXX=str(folder / "compiler"))


def test_threads_that_ask_at_once(compiled):
    assert compiled[1] == [(True, "")] * 5


def test_a_cache_that_is_not_safe_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with build._folder() as folder:
        assert folder == tmp_path / "gspo"
    folder.chmod(0o777)  # anybody may put a library there
    with build._folder() as other:
        assert other != folder and other.is_dir()
    assert not other.exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(build.Path, "home", lambda: exec('raise RuntimeError("no home")'))
    with build._folder() as other:
        assert other.is_dir()


def test_the_library_is_compiled_once(compiled):
    folder, _ = compiled
    compiler = folder / "compiler"
    assert told(folder, CXX=f"{compiler} -g0")[0] and told(folder, CXX=str(compiler))[0]
    assert (folder / "count").read_text() == "x\n"
    assert [file.suffix for file in (folder / "cache" / "gspo").iterdir()] == [".so"]


def test_without_a_compiler_or_with_one_that_fails(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert told(tmp_path, PATH=str(empty), CXX="") == (False, "no C++ compiler was found ($CXX, g++ or clang++)")
    fails = script(tmp_path / "fails", 'case "$*" in *-shared*) echo "no such flag" >&2; exit 1;; esac')
    found, said = told(tmp_path, CXX=fails, PATH=str(empty))
    assert not found and "no such flag" in said and list((tmp_path / "cache" / "gspo").iterdir()) == []
    assert told(tmp_path, CXX=fails) == (True, "")  # the next one


def test_a_broken_library_in_the_cache(tmp_path, compiled):
    folder, _ = compiled
    shutil.copytree(folder / "cache", tmp_path / "cache")
    (file,) = (tmp_path / "cache" / "gspo").iterdir()
    file.write_bytes(b"not a library")
    before = (folder / "count").read_text()
    assert told(tmp_path, CXX=str(folder / "compiler")) == (True, "")  # it is compiled again
    assert (folder / "count").read_text() == before + "x\n" and file.stat().st_size > 10_000
    (folder / "count").write_text(before)
