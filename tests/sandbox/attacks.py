"""Attempts of a program to get out of its sandbox. Each leaves what it got in `leak`: nothing, if the sandbox held.

`HOST` has what a test prepares outside: token (in the environment), secret (a file with it), port, unix, abstract, site.
"""

HEAD = """
import os, sys, ctypes, socket, subprocess, errno, signal, mmap
HOST = {host!r}
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    "A system call; its result, or nothing where it was refused."
    done = libc.syscall(*(ctypes.c_long(w) if isinstance(w, int) else w for w in words))
    return None if done < 0 else done + 1
def said(path, size=1 << 20):
    with open(path, "rb") as file:
        return file.read(size)
def made(path):
    with open(path, "w") as file:
        file.write("x")
    return path
def found(paths):
    for path in paths:
        try:
            if HOST["token"].encode() in said(path): return path
        except OSError: pass
leak = None
try:
"""
TAIL = """
except BaseException as error:
    print("refused:", type(error).__name__, error)
print("BREACH" if leak else "held", repr(leak)[:200], flush=True)
"""


def program(body, host):
    """The source of an attempt."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return HEAD.replace("{host!r}", repr(host)) + lines + TAIL


# The kernel's numbers on x86-64.
READ = {
    "the environment": 'leak = os.environ.get("GSPO_ATTACK_TOKEN")',
    "the parent's environment": 'leak = found([f"/proc/{os.getppid()}/environ"])',
    "everybody's environment": 'leak = found(f"/proc/{p}/environ" for p in os.listdir("/proc") if p.isdigit())',
    "a file of the user": 'leak = said(HOST["secret"])',
    "a file through its parent's root": 'leak = said(f"/proc/{os.getppid()}/root" + HOST["secret"])',
    "a file by a link": 'os.symlink(HOST["secret"], "link"); leak = said("link")',
    "a file by a hard link": 'os.link(HOST["secret"], "/tmp/link"); leak = said("/tmp/link")',
    "users": 'leak = said("/etc/passwd")',
    "the home": 'leak = os.listdir(HOST["home"])',
    "packages with right answers": 'leak = os.listdir(HOST["site"])',
    "the sources of gspo": 'leak = os.listdir(HOST["sources"])',
    "open files of the parent": 'leak = os.listdir(f"/proc/{os.getppid()}/fd")',
    "memory of the parent": 'leak = said(f"/proc/{os.getppid()}/mem")',
    "kernel memory": 'leak = said("/dev/mem", 1)',
    "the kernel's log": 'leak = said("/dev/kmsg", 1) or call(103, 3, ctypes.create_string_buffer(99), 99)',
    "disks": 'leak = [d for d in os.listdir("/dev") if d.startswith(("vd", "sd", "nvme", "loop", "dm-"))]',
    "inherited descriptors": 'leak = [f for f in os.listdir("/proc/self/fd") if int(f) > 4]',
}
WRITE = {
    "the system": 'leak = made("/usr/lib/gspo-attack")',
    "a file of the user": 'leak = made(HOST["secret"])',
    "the rights of a file": 'os.chmod(HOST["secret"], 0); leak = 1',
    "shared memory": 'leak = made("/dev/shm/gspo-attack")',
    "temporary files that stay": 'leak = made("/var/tmp/gspo-attack")',
    "the runner itself": 'p = sys.modules["gspo.sandbox.runner"].__file__; leak = made(p)',
    "where cores go": 'leak = made("/proc/sys/kernel/core_pattern")',
    "control groups": 'leak = os.mkdir("/sys/fs/cgroup/gspo-attack") or 1',
    "standard input": "leak = os.ftruncate(0, 9) or 1",
    "a file that is read": 'leak = os.open(HOST["secret"], os.O_RDONLY | os.O_TRUNC) + 1',
    "a file that is neither read nor written": 'leak = os.open(HOST["secret"], 3 | os.O_TRUNC) + 1',
    "a file by its name": 'os.truncate(HOST["secret"], 0); leak = 1',
    "a lease": 'import fcntl, glob; leak = not fcntl.fcntl(os.open(glob.glob("/usr/lib*/*")[0], 0), 1024, 0)',
    "marks of a file": "import fcntl; fcntl.ioctl(os.open(os.__file__, 0), 0x40086602, bytes(8)); leak = 1",
    "its limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); leak = 1",
    "limits of its parent": "import resource; leak = resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "a terminal": 'import fcntl, termios; fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), termios.TIOCSTI, b"x"); leak = 1',
}
NETWORK = {
    "TCP": 's = socket.create_connection(("127.0.0.1", HOST["port"]), 2); leak = s',
    "UDP": 's = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); leak = s.sendto(b"x", ("127.0.0.1", HOST["port"]))',
    "a raw socket": "leak = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "netlink": "leak = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "a socket of the host": 's = socket.socket(socket.AF_UNIX); s.connect(HOST["unix"]); leak = s',
    "an abstract socket": 's = socket.socket(socket.AF_UNIX); s.connect("\\0" + HOST["abstract"]); leak = s',
    "a datagram": "s, _ = socket.socketpair(type=socket.SOCK_DGRAM); leak = s.sendto(b'x', HOST['datagrams'])",
    "a message of a pair": "s, _ = socket.socketpair(type=2); leak = s.sendmsg([b'x'], [], 0, HOST['datagrams'])",
    "a pair of another family": "leak = call(53, 30, 1, 0, ctypes.create_string_buffer(8))",
    "a server": 's = socket.socket(); s.bind(("", 0)); s.listen(); leak = s.getsockname()',
    "a socket by its number": "leak = call(41, 2, 1, 0)",
}
PROCESSES = {
    "fork": "leak = os.fork() + 1",
    "subprocess": 'leak = subprocess.run(["/bin/true"])',
    "kill the parent": "os.kill(os.getppid(), 9); leak = 1",
    "kill all": "os.kill(-1, 9); leak = 1",
    "signal its own group": "os.kill(0, 0); leak = 1",
    "trace the parent": "leak = call(101, 16, os.getppid(), 0, 0)",
    "read the parent": "b = ctypes.create_string_buffer(16); leak = call(310, os.getppid(), b, 1, b, 1, 0)",
    "the parent's descriptors": "leak = call(438, os.pidfd_open(os.getppid()), 1, 0)",
    "leave the session": "leak = os.setsid() or 1",
    "a signal by a file": (
        "import fcntl\na, b = socket.socketpair(); fcntl.fcntl(a, 8, os.getppid()); fcntl.fcntl(a, 10, 9)\n"
        "fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK); b.send(b'x'); leak = 1"
    ),
    "a signal by a socket": (
        "import fcntl, struct\na, b = socket.socketpair(); fcntl.ioctl(a, 0x8901, struct.pack('i', os.getppid())); leak = 1"
    ),
    "the parent's processors": "os.sched_setaffinity(os.getppid(), {0}); leak = 1",
    "outlive the parent": "leak = call(157, 1, 0, 0, 0, 0)",
}
KERNEL = {
    "become root": "os.setuid(0); leak = 1",
    "capabilities": 's = open("/proc/self/status").read(); leak = int(s.split("CapEff:")[1].split()[0], 16)',
    "privileges by exec": 's = open("/proc/self/status").read(); leak = s.split("NoNewPrivs:")[1].split()[0] != "1"',
    "a user namespace": "leak = call(272, 0x10000000)",
    "another's namespace": 'leak = call(308, os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)',
    "mount": 'leak = call(165, b"none", b"/tmp", b"tmpfs", 0, 0)',
    "chroot": 'os.chroot("/tmp"); leak = 1',
    "a device": 'os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)); leak = said("/tmp/disk", 1)',
    "calls of the other ABI": "leak = call(0x40000000 + 39)",
    "calls of 32 bits": (
        "m = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('53b814000000cd805bc3'))\n"
        "leak = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    ),
    "System V memory": "leak = call(29, 0, 4096, 0o1600)",
    "message queues": "leak = call(68, 0, 0o1600) or call(240, b'gspo', 66, 0o600, 0)",
    "a file in memory": 'leak = os.memfd_create("x")',
    "another's priority": "leak = call(141, 0, os.getppid(), 5)",
}
CONTAIN = {f"{kind}: {name}": body for kind, bodies in {
    "read": READ, "write": WRITE, "network": NETWORK, "processes": PROCESSES, "kernel": KERNEL}.items()
    for name, body in bodies.items()}  # fmt: skip
LEAKS = [
    "read: the environment", "read: a file of the user", "read: users", "read: the home",
    "read: the sources of gspo", "read: open files of the parent", "write: a file of the user",
    "write: a file that is read", "network: a datagram",
    "network: TCP", "network: UDP", "network: a socket of the host", "network: an abstract socket", "network: a server",
    "processes: fork", "processes: subprocess", "processes: leave the session",
    "kernel: a file in memory", "kernel: System V memory", "kernel: privileges by exec", "kernel: calls of 32 bits",
]  # fmt: skip
"""Attempts that succeed without a sandbox, where they do no harm: each of them can succeed."""
