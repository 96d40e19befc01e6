"""What a process gives up, it cannot have back; and the numbers of the calls are the kernel's."""

import os
import re
import resource
from pathlib import Path

import pytest

from gspo.sandbox import confine

KNOWN = {**confine.ALLOWED, **confine.CHECKED, **confine.OF_COMPILERS}
FORBIDDEN = (
    r"msg|sem|shm|mq_|socket$|connect|bind|listen|accept|send_?m|recvm|setsockopt|ptrace|process_|pidfd|kcmp|io_|keyctl|.*_key|"
    r".*mount|move_mount|fs(open|config|mount|pick)|bpf|perf|.*module|kexec|reboot|swap|unshare|setns|chroot|pivot|name_to|"
    r"open_by|openat2|mknod|.*chmod|.*chown|.*xattr|utim|futimesat|truncate|memfd|userfault|.*notify|splice|tee|vmsplice|"
    r"set(sid|pgid|uid|gid|re|priority|domainname|hostname|timeofday)|sched_set|ioprio|clock_(set|adj)|tkill|rt_\w*sigqueue|"
    r"iopl|ioperm|modify_ldt|personality|acct|quota|syslog|flock|inotify|fanotify|landlock|seccomp|clone3|mlock|sync$"
)


@pytest.mark.parametrize(
    ("column", "path", "pattern"),
    [
        (0, Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)"),
        (1, Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
    ],
    ids=["x86-64", "arm64"],
)
def test_the_numbers_of_the_calls_are_the_kernels_and_none_is_of_a_forbidden_kind(column, path, pattern):
    if not path.exists():
        pytest.skip(f"there is no {path}: install the package linux-libc-dev")
    kernel = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    kernel["newfstatat"] = kernel.get("newfstatat", kernel.get("fstatat"))  # its name in asm-generic
    assert {name: one[column] for name, one in KNOWN.items()} == {name: kernel.get(name) for name in KNOWN}
    forbidden = {name for name in kernel if re.match(FORBIDDEN, name)}
    assert len(forbidden) > 100 and forbidden & {*KNOWN} == set()


def verdict(code, number, *arguments, architecture):
    """What a filter does with a call: a small machine for classic BPF."""
    words = {0: number, 4: architecture} | {16 + 8 * i: word for i, word in enumerate(arguments)}
    value = place = 0
    while True:
        word, yes, no, k = code[place]
        place += 1
        if word == 0x06:
            return {0x7FFF0000: "allowed", 0x80000000: "killed", 0x50001: "EPERM", 0x50026: "ENOSYS"}[k]
        if word in (0x20, 0x54):
            value = words.get(k, 0) if word == 0x20 else value & k
        else:
            place += yes if (value == k if word == 0x15 else value >= k) else no


MACHINES = [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)]
T, C, ME = os.O_TRUNC, os.O_CREAT, confine.OWN
CHECKS = [  # name, arguments, whether programs and compilers may
    *(("open", ("path", mode), True, True) for mode in (0, 1, 2, C | 1, C | T | 1, T | 2, os.O_TMPFILE | 2, os.O_PATH)),
    *(("open", ("path", mode), False, False) for mode in (T, T | C, T | 3, 3, T | os.O_PATH, T | os.O_NOFOLLOW)),
    *(("mkdir", ("path", mode), mode & 0o700 == 0o700, mode & 0o700 == 0o700) for mode in (0o777, 0o700, 0, 0o300, 0o577)),
    *(("fcntl", (3, word), word < 8 or word == 1030, word < 8 or word == 1030)
      for word in (*range(11), 15, 1024, 1026, 1030, 1031, 1033)),
    *(("ioctl", (3, word), word in (0x5401, 0x5413), word in (0x5401, 0x5413))
      for word in (0x5401, 0x5413, 0x5412, 0x541C, 0x8901, 0x8902, 0x40086602, 0x40049409, 0x5452)),
    ("kill", (ME, 9), True, True), ("kill", (ME + 1, 9), False, False), ("kill", (0, 9), False, False),
    ("kill", (-1 & 0xFFFFFFFF, 9), False, False), ("tgkill", (ME, 7, 9), True, True), ("tgkill", (5, 5, 9), False, False),
    ("prlimit64", (0, 7), True, True), ("prlimit64", (ME, 7), True, True), ("prlimit64", (1, 7), False, False),
    ("prctl", (15,), True, True), ("prctl", (1,), False, False), ("prctl", (4,), False, False),
    ("clone", (0x3D0F00,), True, True), ("clone", (0x3D0F00 & ~0x400,), False, True), ("clone", (0x4111,), False, True),
    ("clone", (17,), False, True), ("clone", (17 | 0x10000000,), False, False), ("clone", (0x20010400,), False, False),
    ("socketpair", (1, 1), True, True), ("socketpair", (1, 0x80801), True, True), ("socketpair", (1, 2), False, False),
    ("socketpair", (1, 5), False, False), ("socketpair", (2, 1), False, False), ("socketpair", (30, 1), False, False),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "column", "architecture"), MACHINES)
def test_a_filter_allows_what_is_listed_and_no_more(monkeypatch, machine, column, architecture):
    monkeypatch.setattr(os, "uname", lambda: type("Uname", (), {"machine": machine}))
    wrong = []
    for forks in (False, True):
        code = confine.bpf_filter(forks)
        listed = {one[column] for one in (confine.ALLOWED | confine.OF_COMPILERS if forks else confine.ALLOWED).values()}
        checked = {one[column] for one in confine.CHECKED.values()}
        for number in set(range(600)) - checked:
            found = verdict(code, number, architecture=architecture)
            if found != ("allowed" if number in listed else "ENOSYS" if number >= 424 else "EPERM"):
                wrong.append((forks, number, found))
        for other in (0x40000003, 0xC00000B7, 0xC000003E, 0x40000028):  # i386, arm64, x86-64, arm
            if other != architecture and verdict(code, 39, architecture=other) != "killed":
                wrong.append((forks, hex(other)))
        x32 = {verdict(code, 0x40000000 + number, architecture=architecture) for number in (*range(600), 0x3FFFFFFF)}
        wrong += [] if x32 == {"killed"} else [(forks, "x32")]
        for name, arguments, program, compiler in CHECKS:
            at = (-100,) if column and name in ("open", "mkdir") else ()
            numbers = confine.CHECKED[{"open": "openat", "mkdir": "mkdirat"}[name] if at else name]
            words = [word if isinstance(word, int) else 0 for word in (*at, *arguments)]
            found = verdict(code, numbers[column], *words, architecture=architecture)
            if (found == "allowed") != (compiler if forks else program):
                wrong.append((forks, name, arguments, found))
    assert not wrong


def test_an_unknown_machine_gets_no_filter(monkeypatch):
    monkeypatch.setattr(os, "uname", lambda: type("Uname", (), {"machine": "riscv64"}))
    with pytest.raises(OSError, match="no seccomp filter is written for riscv64"):
        confine.bpf_filter()


def test_limits_are_hard_ones():
    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
    read, write = os.pipe()
    if not (pid := os.fork()):
        confine.limit(confine.limits(1.5, 1 << 30, 1000, None))
        os.write(write, str([resource.getrlimit(kind) for kind in kinds]).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1000).decode() == str([(2, 2), (1 << 30, 1 << 30), (1000, 1000), (0, 0)])
