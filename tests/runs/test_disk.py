"""What is written appears as a whole or not at all, and what is damaged is found."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from gspo.runs import disk
from gspo.runs.disk import SaveError
from tests.patience import PATIENCE
from tests.runs.full_disk import full_disk
from tests.tiny_run import model


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_replaced_in_one_move_or_stays(tmp_path):
    final = tmp_path / "model"
    disk.write_folder(final, lambda part: (part / "a").write_text("1"))
    seen = []

    def again(part):
        (part / "b").write_text("2")
        seen.append(names(final))  # the old one is whole while the new one is written

    disk.write_folder(final, again)
    assert seen == [["a"]] and names(final) == ["b"]

    for error in (TypeError("a mistake of ours"), KeyboardInterrupt()):  # other errors stay what they are

        def fails(part, error=error):
            (part / "c").write_text("3")
            raise error

        with pytest.raises(type(error)):
            disk.write_folder(final, fails)
        assert names(final) == ["b"] and names(tmp_path) == ["model"]


def to_full(part):
    """A tokenizer onto a device without room: the real library with the kernel's own error."""
    (part / "tokenizer.json").symlink_to("/dev/full")
    model().tokenizer.save_pretrained(part)


def state_to_full(part):
    (part / "state.pt").symlink_to("/dev/full")
    torch.save({"moments": torch.ones(1 << 16)}, part / "state.pt")


# torch does not say why: on a full disk its lack of room does, which this device cannot show.
@pytest.mark.parametrize(("write", "why"), [(to_full, ": the disk is full, make room on it"), (state_to_full, "")])
def test_a_disk_that_is_full_for_whatever_library_writes(tmp_path, write, why):
    disk.write_folder(tmp_path / "model", lambda part: (part / "a").write_text("1"))
    with pytest.raises(SaveError, match=f"model could not be written .* GiB are free there{why}$"):
        disk.write_folder(tmp_path / "model", write)
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["a"]


def test_a_text_is_replaced_at_once_or_stays(tmp_path):
    disk.write_text(tmp_path / "config.toml", "first")
    with full_disk(), pytest.raises(SaveError, match=r"config\.toml could not be written .*GiB are free there"):
        disk.write_text(tmp_path / "config.toml", "second")
    assert names(tmp_path) == ["config.toml"] and (tmp_path / "config.toml").read_text() == "first"
    disk.write_text(tmp_path / "config.toml", "second")
    assert (tmp_path / "config.toml").read_text() == "second"


def test_links_are_replaced_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("1")
    (tmp_path / "model").symlink_to("elsewhere")
    disk.write_folder(tmp_path / "model", lambda part: (part / "a").write_text("1"))
    assert not (tmp_path / "model").is_symlink() and names(tmp_path / "model") == ["a"]
    (tmp_path / ".config.toml.part").symlink_to("elsewhere/mine")
    disk.write_text(tmp_path / "config.toml", "2")
    assert (tmp_path / "config.toml").read_text() == "2" and (tmp_path / "elsewhere" / "mine").read_text() == "1"
    (tmp_path / "config.toml").unlink()
    (tmp_path / "link").symlink_to("elsewhere")
    disk.remove(tmp_path / "link")
    assert names(tmp_path) == ["elsewhere", "model"] and names(tmp_path / "elsewhere") == ["mine"]
    disk.delete(tmp_path / "none")


# Each of the calls to the kernel that it makes, by number.
STOPS = [("rename", 0), ("rename", 1), *(("fsync", i) for i in range(4)), ("unlink", 0), ("unlink", 1), ("rmdir", 0)]


@pytest.mark.parametrize(("call", "count"), STOPS)
def test_a_kill_in_the_middle_of_a_replacement_leaves_the_old_or_the_new(tmp_path, call, count):
    """At each of its calls to the kernel, and the next start clears up."""
    code = (
        "import os, sys; from pathlib import Path; from gspo.runs import disk\n"
        "real, left = getattr(os, sys.argv[2]), [int(sys.argv[3])]\n"
        "def dies(*given, **more):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os.kill(os.getpid(), 9)\n"
        "    return real(*given, **more)\n"
        "setattr(os, sys.argv[2], dies)\n"
        "disk.write_folder(Path(sys.argv[1]), lambda part: [(part / name).write_text('new') for name in 'ab'])\n"
    )
    final = tmp_path / "model"
    disk.write_folder(final, lambda part: [(part / name).write_text("old") for name in "ab"])
    ended = subprocess.run([sys.executable, "-c", code, str(final), call, str(count)], timeout=PATIENCE)
    assert ended.returncode == -signal.SIGKILL
    disk.sweep(tmp_path, "model")
    assert names(tmp_path) == ["model"] and names(final) == ["a", "b"]
    assert len({(final / name).read_text() for name in "ab"}) == 1


def test_damage_is_found_in_any_file(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.json", "deep/b.safetensors", "two  spaces.pt"):
        (tmp_path / name).write_text(name)
    assert disk.damage(tmp_path) == ""
    disk.write_sums(tmp_path)
    assert disk.damage(tmp_path) == ""
    for name in (".DS_Store", "model.gguf", "notes.md"):
        (tmp_path / name).write_text("not ours")
    assert disk.damage(tmp_path) == ""
    whole = (tmp_path / disk.SUMS).read_text()
    for line in whole.splitlines(keepends=True):
        path = tmp_path / (name := line.rstrip().partition("  ")[2])
        (tmp_path / disk.SUMS).write_text(whole.replace(line, ""))
        assert disk.damage(tmp_path) == f"{path} is not in SHA256SUMS: the file was added, or its line was taken out"
        (tmp_path / disk.SUMS).write_text(whole)
        path.write_text("x")
        assert disk.damage(tmp_path) == f"{path} is damaged: its checksum is not the one in SHA256SUMS"
        path.write_text(name)
    for text in ("", "junk\n", whole[:-1], whole + "junk\n"):
        (tmp_path / disk.SUMS).write_text(text)
        assert disk.damage(tmp_path) == f"{tmp_path / disk.SUMS} is damaged"
    (tmp_path / disk.SUMS).write_text(whole)
    os.remove(tmp_path / "a.json")
    assert disk.damage(tmp_path) == f"{tmp_path / 'a.json'} is missing"


def test_nobody_else_may_write_to_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        folder = disk.cache_folder()
    finally:
        os.umask(before)
    assert folder == tmp_path / "cache" / "gspo" and folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SaveError, match=r"cannot be made .*: set XDG_CACHE_HOME"):
        disk.cache_folder()


def test_a_file_that_cannot_be_read_is_damage_and_no_error(tmp_path, monkeypatch):
    (tmp_path / "state.pt").write_text("state")
    disk.write_sums(tmp_path)

    def unreadable(path):
        raise OSError("Input/output error")

    monkeypatch.setattr(disk, "_sum", unreadable)
    assert disk.damage(tmp_path) == f"{tmp_path / 'state.pt'} cannot be read (Input/output error)"
