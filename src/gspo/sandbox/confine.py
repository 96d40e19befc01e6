"""Irrevocable restrictions of a process before it runs an untrusted program: Landlock, seccomp, rlimits.

Uses ctypes instead of a library: libseccomp and its bindings would have to exist inside the sandbox, for whatever Python
runs there, and loading them costs more than the thirty lines of filter below. Linux only; x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:  # as in typing, which is slow to import
    from collections.abc import Iterable

SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVS = 1, 4, 22, 38  # options of prctl
KILL, FAIL, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000  # actions of a filter: kill the process, return an errno, allow
EPERM, ENOSYS = 1, 38
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # classic BPF
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24  # offsets in seccomp_data; low halves of the arguments
THREAD = 0x00010000  # CLONE_THREAD
NEWEST = 462  # newer system calls did not exist when this list was written

# name: (x86-64, arm64); None: the architecture has no such call
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "fork": (57, None), "vfork": (58, None), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "process_madvise": (440, 440), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "tkill": (200, 130), "setsid": (112, 157), "setpgid": (109, 154),
    "sched_setattr": (314, 274), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setaffinity": (203, 122), "setpriority": (141, 140), "ioprio_set": (251, 30),
    # memory outside RLIMIT_AS
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_setup": (206, 0), "userfaultfd": (323, 282),
    "fanotify_init": (300, 262), "vmsplice": (278, 75), "splice": (275, 76), "tee": (276, 77),
    # file operations that Landlock does not restrict; a compiler needs some of them for its own files
    "chmod": (90, None), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchmod": (91, 52), "chown": (92, None),
    "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "truncate": (76, 45),
    "inotify_init": (253, None), "inotify_init1": (294, 26),
    # the network
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201), "accept": (43, 202),
    "accept4": (288, 242),
    # kernel administration, namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "chroot": (161, 51), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "bpf": (321, 280),
    "perf_event_open": (298, 241), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142),
    "swapon": (167, 224), "acct": (163, 89), "syslog": (103, 116), "quotactl": (179, 60), "personality": (135, 92),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "mknodat": (259, 33), "mknod": (133, None),
    "setuid": (105, 146), "setresuid": (117, 147), "setgid": (106, 144), "setresgid": (119, 149),
}  # fmt: skip
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
OF_COMPILERS = ("fork", "vfork", "chmod", "fchmodat", "fchmodat2", "fchmod", "truncate", "utimensat", "setpriority")
CLONE, CLONE3, PRCTL = (56, 220), (435, 435), (157, 167)
TO_SELF = ((62, 129), (234, 131))  # kill, tgkill
LIMITS = (302, 261)  # prlimit64: pid 0 is the process itself (to kill, it is the process group)
TO_OTHERS = (((72, 25), (8, 10, 15)), ((16, 29), (0x8901, 0x8902, 0x5412, 0x541C)))
"""Commands (second argument) of fcntl and ioctl that make a file signal another process, or insert text in its terminal."""
X32 = 0x40000000
OWN = 0x7FFFFFFF  # placeholder for the pid of the process that enters a filter

_libc = ctypes.CDLL(None, use_errno=True)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


def prctl(option: int, value: int) -> None:
    """Calls prctl(2). Raises OSError."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def bpf_filter(pid: int, forks: bool = False) -> list[tuple[int, int, int, int]]:
    """The seccomp filter of process `pid`, as BPF: threads but no processes (unless `forks`), signals only to itself, no
    network, no memory outside RLIMIT_AS, no kernel administration. Raises OSError on other architectures.
    """
    machine = os.uname().machine
    if machine not in MACHINES:
        raise OSError(f"no seccomp filter is written for {machine}")
    column, architecture = MACHINES[machine]
    failed = (RETURN, 0, 0, FAIL | EPERM)
    code: list[tuple[int, int, int, int]] = [
        (LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL),
        (AT_LEAST, 0, 1, NEWEST + 1), (RETURN, 0, 0, FAIL | ENOSYS),
        (EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, FAIL | ENOSYS),  # its flags are in memory; libc falls back to clone
        (EQUAL, 0, 4, PRCTL[column]), (LOAD, 0, 0, FIRST), (EQUAL, 0, 1, SET_PDEATHSIG), failed, (RETURN, 0, 0, ALLOW),
    ]  # fmt: skip
    if not forks:
        code += [(EQUAL, 0, 4, CLONE[column]), (LOAD, 0, 0, FIRST), (ANY_BIT, 0, 1, THREAD), (RETURN, 0, 0, ALLOW), failed]
    for call in TO_SELF:
        code += [(EQUAL, 0, 4, call[column]), (LOAD, 0, 0, FIRST), (EQUAL, 0, 1, pid), (RETURN, 0, 0, ALLOW), failed]
    code += [(EQUAL, 0, 5, LIMITS[column]), (LOAD, 0, 0, FIRST), (EQUAL, 1, 0, pid), (EQUAL, 0, 1, 0)]
    code += [(RETURN, 0, 0, ALLOW), failed]
    for call, commands in TO_OTHERS:
        code += [(EQUAL, 0, 2 * len(commands) + 2, call[column]), (LOAD, 0, 0, SECOND)]
        for command in commands:
            code += [(EQUAL, 0, 1, command), failed]
        code += [(RETURN, 0, 0, ALLOW)]
    for name, numbers in DENIED.items():
        number = numbers[column]
        if number is not None and not (forks and name in OF_COMPILERS):
            code += [(EQUAL, 0, 1, number), failed]
    return [*code, (RETURN, 0, 0, ALLOW)]


class SyscallFilter:
    """The seccomp filter, built once and then entered by each forked process. Raises OSError."""

    def __init__(self, forks: bool = False) -> None:
        code = bpf_filter(OWN, forks)
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


class Landlock:
    """Rules that a process imposes on itself. Raises OSError.

    `readable` paths may be read and executed, `writable` ones (devices) read and written, the folder `own` is unrestricted;
    no other file can be opened. No network and no signals to other processes, if the kernel's Landlock supports that.
    """

    def __init__(self, readable: Iterable[str], writable: Iterable[str] = (), own: str = "") -> None:
        version = _libc.syscall(CREATE, None, ctypes.c_size_t(0), 1)
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
    }
    if threads is not None:
        values[resource.RLIMIT_NPROC] = threads
    most = {kind: resource.getrlimit(kind)[1] for kind in (*values, resource.RLIMIT_STACK)}
    bounded = {kind: v if most[kind] == resource.RLIM_INFINITY else min(v, most[kind]) for kind, v in values.items()}
    stack = most[resource.RLIMIT_STACK]
    room = STACK if stack == resource.RLIM_INFINITY else min(STACK, stack)
    return [*((kind, (value, value)) for kind, value in bounded.items()), (resource.RLIMIT_STACK, (room, stack))]


def limit(values: Rlimits) -> None:
    """Sets the rlimits. A write beyond the file size fails: Python ignores SIGXFSZ, and its child processes inherit that."""
    for kind, value in values:
        resource.setrlimit(kind, value)


STACK = 120 << 20
"""Bytes of stack for deep recursion. The kernel reserves 128 MiB of addresses for a process started with a lower limit."""
