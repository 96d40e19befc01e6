"""Irrevocable restrictions of a process before it runs an untrusted program: Landlock, seccomp, rlimits.

Uses ctypes, since libseccomp and its bindings would have to exist inside the sandbox. Linux only; x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import os
import resource

SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS = 1, 4, 22, 38  # options of prctl
KILL, FAIL, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000  # actions of a filter: kill the process, return an errno, allow
EPERM, ENOSYS = 1, 38
LOAD, AND, EQUAL, AT_LEAST, RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # classic BPF
NUMBER, ARCHITECTURE, FIRST, SECOND, THIRD = 0, 4, 16, 24, 32  # offsets in seccomp_data; low halves of the arguments

# What strace saw of the programs in tests/sandbox/tricks.py, of Python's standard library, g++ and compiled programs, and
# the calls by which another libc does the same. None of them reaches another process, a name that Landlock does not
# guard, or memory outside the rlimits. name: (x86-64, arm64); None: the architecture has no such call.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # open files
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "pread64": (17, 67),
    "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66), "preadv": (295, 69), "pwritev": (296, 70),
    "preadv2": (327, 286), "pwritev2": (328, 287), "sendfile": (40, 71), "copy_file_range": (326, 285), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "fsync": (74, 82), "fdatasync": (75, 83),
    "ftruncate": (77, 46), "fallocate": (285, 47), "fadvise64": (221, 223), "getdents": (78, None), "getdents64": (217, 61),
    "fchdir": (81, 50), "fstatfs": (138, 44), "close_range": (436, 436),
    # names
    "stat": (4, None), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43),
    "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getcwd": (79, 17), "chdir": (80, 49), "creat": (85, None), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276),
    "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35),
    # waiting
    "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19),
    # a pair of sockets, of which asyncio takes one for itself
    "sendto": (44, 206), "recvfrom": (45, 207), "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205),
    # memory
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mremap": (25, 216), "mprotect": (10, 226), "msync": (26, 227),
    "madvise": (28, 233),
    # threads
    "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96), "rseq": (334, 293),
    "arch_prctl": (158, None), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "exit": (60, 93),
    # signals and time
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132), "restart_syscall": (219, 128),
    "pause": (34, None), "alarm": (37, None), "getitimer": (36, 102), "setitimer": (38, 103), "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169),
    "time": (201, None), "times": (100, 153),
    # itself and the machine
    "getpid": (39, 172), "gettid": (186, 178), "getppid": (110, 173), "getpgid": (121, 155), "getpgrp": (111, None),
    "getsid": (124, 156), "getuid": (102, 174), "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177),
    "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158), "getpriority": (140, 141),
    "getrusage": (98, 165), "getrlimit": (97, 163), "setrlimit": (160, 164), "uname": (63, 160), "sysinfo": (99, 179),
    "getrandom": (318, 278), "execve": (59, 221), "execveat": (322, 281), "exit_group": (231, 94),
    "wait4": (61, 260), "waitid": (247, 95),
}  # fmt: skip
OF_COMPILERS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None), "umask": (95, 166)}
OWN = 0x7FFFFFFF  # placeholder for the pid of the process that enters a filter
ALL = 0xFFFFFFFF
THREAD, SHARED_FILES = 0x10000, 0x400  # flags of clone; threads with files of their own would have more of them
NAMESPACES = 0x7E020000
WRONLY, RDWR, TRUNC = 1, 2, 0o1000
# Before ABI 3, Landlock does not see that a file is emptied unless it is opened for writing.
OPENED = (3 | TRUNC, (0, WRONLY, RDWR, WRONLY | TRUNC, RDWR | TRUNC))
ENTERED = (0o700, (0o700,))  # whoever removes a folder must be able to enter it
Condition = tuple[int, int, tuple[int, ...]]
# What is allowed for some arguments only: for each condition, the argument with a mask is one of the values.
CHECKED: dict[str, tuple[int | None, int | None, tuple[Condition, ...]]] = {
    "open": (2, None, ((SECOND, *OPENED),)),
    "openat": (257, 56, ((THIRD, *OPENED),)),
    "mkdir": (83, None, ((SECOND, *ENTERED),)),
    "mkdirat": (258, 34, ((THIRD, *ENTERED),)),
    # descriptors, flags and locks, but no signals to another process, leases or larger pipes
    "fcntl": (72, 25, ((SECOND, ALL, (0, 1, 2, 3, 4, 5, 6, 7, 1030)),)),
    # is it a terminal, its size, blocking, close on exec, bytes to read
    "ioctl": (16, 29, ((SECOND, ALL, (0x5401, 0x5413, 0x5421, 0x5450, 0x5451, 0x541B)),)),
    "prctl": (157, 167, ((FIRST, ALL, (15, 16)),)),  # the name of a thread
    "prlimit64": (302, 261, ((FIRST, ALL, (0, OWN)),)),  # 0: the process itself
    "kill": (62, 129, ((FIRST, ALL, (OWN,)),)),
    "tgkill": (234, 131, ((FIRST, ALL, (OWN,)),)),
    # of AF_UNIX, SOCK_STREAM alone: datagrams could be sent to the sockets of others
    "socketpair": (53, 199, ((FIRST, ALL, (1,)), (SECOND, 0xF, (1,)))),
    "clone": (56, 220, ((FIRST, THREAD | SHARED_FILES | NAMESPACES, (THREAD | SHARED_FILES,)),)),
}
FORKED = (FIRST, THREAD | NAMESPACES, (0, THREAD))  # the condition of clone for a compiler
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
NEW = 424  # from here on numbers are common to all architectures, and libc does without these calls if they do not exist
X32 = 0x40000000
# Bytes for deep recursion. The kernel reserves 128 MiB of addresses for a process started with a lower limit.
STACK = 120 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


def prctl(option: int, value: int) -> None:
    """Calls prctl(2). Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def bpf_filter(forks: bool = False) -> list[tuple[int, int, int, int]]:
    """The seccomp filter as BPF. It lets ALLOWED and CHECKED pass, with `forks` also what compilers need. Other calls fail;
    those of x32 or of another architecture kill. Raises OSError on other machines.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no seccomp filter is written for {machine}")
    column, architecture = MACHINES[machine]
    allowed, failed = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | EPERM)
    code: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL),
    ]  # fmt: skip
    for numbers in (ALLOWED | OF_COMPILERS if forks else ALLOWED).values():
        if (number := numbers[column]) is not None:
            code += [(EQUAL, 0, 1, number), allowed]
    for name, (*pair, conditions) in CHECKED.items():
        if (number := pair[column]) is not None:
            body: list[tuple[int, int, int, int]] = []
            for argument, mask, values in (FORKED,) if forks and name == "clone" else conditions:
                body += [(LOAD, 0, 0, argument), (AND, 0, 0, mask)]
                body += [(EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]
                body += [failed]
            code += [(EQUAL, 0, len(body) + 1, number), *body, allowed]
    return [*code, (AT_LEAST, 0, 1, NEW), (RETURN, 0, 0, FAIL | ENOSYS), failed]


class SyscallFilter:
    """The seccomp filter, built once and then entered by each forked process. Raises OSError."""

    def __init__(self, forks: bool = False) -> None:
        code = bpf_filter(forks)
        self.instructions = (_Instruction * len(code))(*(_Instruction(*line) for line in code))
        self.places = [i for i, line in enumerate(code) if line[3] == OWN]
        self.program = _Filter(len(code), self.instructions)

    def enter(self) -> None:
        """Applies the filter to this process, also after an exec."""
        for i in self.places:
            self.instructions[i].k = os.getpid()
        prctl(SET_NO_NEW_PRIVS, 1)
        if _libc.prctl(SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(self.program), 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp is refused")


CREATE, ADD, RESTRICT = 444, 445, 446  # Landlock's calls, the same on all architectures
EXECUTE, WRITE, READ, LIST = 1, 2, 4, 8
FILES = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}  # number of file access rights in each Landlock version


class _Rules(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """The version of the kernel's Landlock; -1 if it has none."""
    version: int = _libc.syscall(CREATE, None, ctypes.c_size_t(0), 1)
    return version


class Landlock:
    """Rules that a process imposes on itself: `readable` paths may be read and executed, `writable` ones (devices) read and
    written, the folder `own` is unrestricted. With a newer kernel no network and no signals to others. Raises OSError.
    """

    def __init__(self, readable: list[str], writable: tuple[str, ...] = (), own: str = "") -> None:
        version = abi()
        if version < 1:
            raise OSError(ctypes.get_errno(), "the kernel has no Landlock")
        rules = _Rules((1 << FILES.get(version, 16)) - 1, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
        size = 8 if version < 4 else 16 if version < 6 else 24
        self.rules = _libc.syscall(CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0)
        if self.rules < 0:
            raise OSError(ctypes.get_errno(), "Landlock is refused")
        for path in readable:
            self.allow(path, EXECUTE | READ | LIST)
        for path in writable:
            self.allow(path, READ | WRITE)
        if own:
            self.allow(own, rules.files)

    def allow(self, path: str, rights: int) -> None:
        """Allows `rights` below `path`, if it exists."""
        try:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return
        try:
            if not os.path.isdir(path):
                rights &= EXECUTE | WRITE | READ
            beneath = _Beneath(rights, file)
            if _libc.syscall(ADD, self.rules, 1, ctypes.byref(beneath), 0):
                raise OSError(ctypes.get_errno(), f"Landlock: {path}")
        finally:
            os.close(file)

    def enter(self) -> None:
        """Applies the rules to this process."""
        self.allow("/proc/self", READ | LIST)  # /dev/stdin links there
        prctl(SET_NO_NEW_PRIVS, 1)
        if _libc.syscall(RESTRICT, self.rules, 0):
            raise OSError(ctypes.get_errno(), "Landlock is refused")
        os.close(self.rules)


Rlimits = list[tuple[int, tuple[int, int]]]


def limits(seconds: float, memory: int, size: int, threads: int | None) -> Rlimits:
    """The rlimits: CPU seconds (rounded up), bytes of address space, bytes per file, threads of the user (None: as is)."""
    values = {
        resource.RLIMIT_CPU: int(seconds) + 1,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_FSIZE: size,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
        resource.RLIMIT_STACK: STACK,
    }
    if threads is not None:
        values[resource.RLIMIT_NPROC] = threads
    chosen = []
    for kind, value in values.items():
        hard = resource.getrlimit(kind)[1]
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        chosen.append((kind, (soft, hard if kind == resource.RLIMIT_STACK else soft)))
    return chosen


def limit(values: Rlimits) -> None:
    """Sets the rlimits. A write beyond the file size fails: Python ignores SIGXFSZ, and its child processes inherit that."""
    for kind, value in values:
        resource.setrlimit(kind, value)
