"""The commands show a program what it needs, and nothing of a request stands in them."""

import os
import sys

from gspo.sandbox import drivers


def test_no_packages_are_shown(tmp_path):
    prefix = tmp_path / "python"
    for name in ("bin", "lib/python3.11/site-packages/answers", "lib/python3.11/json"):
        (prefix / name).mkdir(parents=True)
    program = prefix / "bin" / "python3.11"
    program.touch()
    python = drivers.found_at(str(program))
    assert python.readable == (str(program), str(prefix / "lib/python3.11"))
    shown = drivers.readable(python, "/kit")
    assert str(prefix / "lib/python3.11/json") in shown
    assert not any(path.endswith("site-packages") or path == str(prefix / "lib/python3.11") for path in shown)
    if drivers.bwrap():
        words = drivers.bubblewrap(python, "/kit", 1 << 20)
        assert words[words.index(str(prefix / "lib/python3.11/site-packages")) - 1] == "--tmpfs"


def test_the_interpreters_are_ours_and_the_systems():
    programs = [python.program for python in drivers.pythons()]
    assert programs[0] == os.path.realpath(sys.executable) and len(set(programs)) == len(programs)
    assert drivers.found_at("/usr/bin/python3").readable == ()


def test_every_sandbox_of_root_has_a_user_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    users = {drivers.user() for _ in range(1000)}
    assert len(users) == 1000 and all(any(user in some for some in drivers.USERS) for user in users)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert drivers.user() is None


def test_threads_are_counted_beside_what_the_user_has():
    assert drivers.tasks(64, None, "bwrap") == drivers.tasks(64, 210_000, "landlock") == 67
    assert drivers.tasks(64, None, "landlock") > 64
