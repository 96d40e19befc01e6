"""The library: compiled once, by what is there, and kept where it is safe."""

import os
import subprocess
import sys

import pytest

from gspo.backends.hf.fused import build

pytestmark = pytest.mark.skipif(build.library() is None, reason="no C++ compiler here")


TOLD = """
from gspo.backends.hf.fused import build
print(build.library() is not None, build.missing())
"""


def told(tmp_path, code=TOLD, **changes):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")} | changes
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    found, _, why = done.stdout.strip().partition(" ")
    return found == "True", why


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


RACE = """
import threading
from gspo.backends.hf.fused import build
found = []
threads = [threading.Thread(target=lambda: found.append(build.library() is not None)) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(all(found) and len(found) == 4 and build.library() is not None)
"""


def test_threads_that_ask_at_once(tmp_path):
    assert told(tmp_path, RACE) == (True, "")


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


def test_the_library_is_compiled_once(tmp_path):
    real, count = build.shutil.which("g++") or build.shutil.which("clang++"), tmp_path / "count"
    compiler = script(tmp_path / "compiler", f'case "$*" in *-shared*) echo x >> {count};; esac; exec {real} "$@"')
    assert told(tmp_path, CXX=compiler)[0] and told(tmp_path, CXX=f"{compiler} -g0")[0] and told(tmp_path, CXX=compiler)[0]
    assert count.read_text() == "x\n"
    assert [file.suffix for file in (tmp_path / "cache" / "gspo").iterdir()] == [".so"]


def test_without_a_compiler_or_with_one_that_fails(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert told(tmp_path, PATH=str(empty), CXX="") == (False, "no C++ compiler was found ($CXX, g++ or clang++)")
    fails = script(tmp_path / "fails", 'case "$*" in *-shared*) echo "no such flag" >&2; exit 1;; esac')
    found, said = told(tmp_path, CXX=fails, PATH=str(empty))
    assert not found and "no such flag" in said and list((tmp_path / "cache" / "gspo").iterdir()) == []
    assert told(tmp_path, CXX=fails) == (True, "")  # the next one


def test_a_broken_library_in_the_cache(tmp_path):
    assert told(tmp_path)[0]
    (file,) = (tmp_path / "cache" / "gspo").iterdir()
    file.write_bytes(b"not a library")
    found, said = told(tmp_path)
    assert found and not said  # it is compiled again
