"""What a process gives up, it cannot have back; and the numbers of the calls are the kernel's."""

import os
import re
import resource
from pathlib import Path

import pytest

from gspo.sandbox import confine

HEADERS = [
    (0, Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)"),
    (1, Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
]


@pytest.mark.parametrize(("column", "path", "pattern"), HEADERS, ids=["x86-64", "arm64"])
def test_the_numbers_of_the_calls_are_the_kernels(column, path, pattern):
    if not path.exists():
        pytest.skip(f"there is no {path}: install the package linux-libc-dev")
    kernel = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    for name, numbers in confine.DENIED.items():
        if name in kernel or column == 0:
            assert numbers[column] == kernel.get(name, numbers[column]), name
        else:
            assert numbers[column] is None or numbers[column] >= 424, name  # newer than this header, the same everywhere
    named = {"clone": confine.CLONE, "clone3": confine.CLONE3, "prctl": confine.PRCTL}
    named |= dict(zip(("kill", "tgkill", "prlimit64"), (*confine.TO_SELF, confine.LIMITS)))
    assert {name: numbers[column] for name, numbers in named.items()} == {name: kernel[name] for name in named}
    assert max(kernel[name] for name in kernel if name != "syscalls") <= confine.NEWEST


def in_a_child(work):
    """What `work` returns in a process of its own: a text."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, str(work()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    text = os.read(read, 10_000).decode()
    os.close(read)
    os.waitpid(pid, 0)
    return text


def filtered(work, forks=False):
    def enter():
        confine.SyscallFilter(forks).enter()
        return work()

    return in_a_child(enter)


@pytest.mark.skipif(os.uname().machine not in confine.MACHINES, reason="no filter is written for this machine")
def test_a_filter_leaves_threads_and_takes_processes():
    assert filtered(lambda: os.kill(os.getpid(), 0)) == "None"
    assert "PermissionError" in filtered(lambda: os.kill(os.getppid(), 0))
    assert "PermissionError" in filtered(lambda: os.kill(0, 0))  # the group, to which the runner belongs
    assert "PermissionError" in filtered(os.fork)
    assert "PermissionError" in filtered(lambda: os.memfd_create("x"), forks=True)
    assert filtered(lambda: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1], forks=True) == "0"
    assert filtered(lambda: resource.prlimit(0, resource.RLIMIT_CPU) != ()) == "True"
    assert "PermissionError" in filtered(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU))


@pytest.mark.skipif(os.uname().machine not in confine.MACHINES, reason="no filter is written for this machine")
def test_a_filter_keeps_a_process_from_files_that_it_only_names(tmp_path):
    file = tmp_path / "f"
    file.write_text("text")
    before = file.stat()
    for work in (
        lambda: os.chmod(file, 0),
        lambda: os.chown(file, os.getuid(), os.getgid()),
        lambda: os.utime(file, (1, 1)),
        lambda: os.truncate(file, 0),
        lambda: os.setxattr(file, "user.a", b"b"),
    ):
        assert "PermissionError" in filtered(work)
    after = file.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (before.st_mode, before.st_mtime_ns, before.st_ctime_ns)


def test_an_unknown_machine_gets_no_filter(monkeypatch):
    class Other:
        machine = "riscv64"

    monkeypatch.setattr(os, "uname", Other)
    with pytest.raises(OSError, match="no seccomp filter is written for riscv64"):
        confine.bpf_filter(1)


def landlocked(*paths, own=""):
    try:
        return confine.Landlock(["/usr", "/lib", *paths], own=own)
    except OSError as error:
        pytest.skip(f"there is no Landlock here: {error}")


def test_landlock_shows_what_is_named_and_no_more(tmp_path):
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for folder in (shown, hidden):
        folder.mkdir()
        (folder / "f").write_text("text")

    def after(work, own=""):
        rules = landlocked(str(shown), "/no/such/folder", own=own)

        def enter():
            rules.enter()
            return work()

        try:
            return in_a_child(enter)
        finally:
            os.close(rules.rules)

    assert after(lambda: (shown / "f").read_text()) == "text"
    assert "PermissionError" in after(lambda: (hidden / "f").read_text())
    assert "PermissionError" in after(lambda: os.listdir(hidden))
    assert "PermissionError" in after(lambda: (shown / "f").write_text("x"))
    assert "PermissionError" in after(lambda: os.truncate(shown / "f", 0))
    assert after(lambda: (hidden / "g").write_text("x"), own=str(hidden)) == "1"
    assert "[Errno" in after(lambda: os.kill(os.getppid(), 0)) or after(lambda: os.kill(os.getppid(), 0)) == "None"


def test_limits_are_hard_ones():
    def work():
        confine.limit(confine.limits(1.5, 1 << 30, 1000, None))
        kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
        return [resource.getrlimit(kind) for kind in kinds]

    assert in_a_child(work) == str([(2, 2), (1 << 30, 1 << 30), (1000, 1000), (0, 0)])
