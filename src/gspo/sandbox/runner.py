"""Runs inside the sandbox: reads a program and its tests, forks a process per test, and reports the outcomes.

It imports next to nothing, since it starts anew for each reply. The request is our own, serialised by marshal. It sends
`ready`, then for each test the status, microseconds, output, value and detail, as messages that multiprocessing reads.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import signal
import sys

from gspo.sandbox import confine
from gspo.sandbox.watch import FILES, Suppressed, overfull, watch

TYPE_CHECKING = False
if TYPE_CHECKING:  # as in typing, which is slow to import
    from typing import Any

DETAIL = 2000  # bytes of standard error to report
COMPILED = 256 << 20  # bytes of a file that the compiler writes
COMPILER_MEMORY = 2 << 30
COMPILER = "/usr/bin/g++"
FLAGS = ("-O2", "-std=gnu++20", "-w")  # a precompiled header only works with the flags it was compiled with
KEPT = 1010  # first file descriptor that a test's process keeps open before exec (the compiled program)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")
DIGITS = 50_000  # of numbers read and written; Python's default is 4300
OWN_MODULES: list[str] = []  # folders of our own modules, removed from the program's sys.path


def main() -> None:
    """Serves the one request on standard input."""
    confine.prctl(confine.SET_DUMPABLE, 0)  # no test can read this process's memory or files
    with Suppressed(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # out of memory: the kernel kills a test, not the training
    out = os.dup(1)
    os.dup2(2, 1)
    with open(0, "rb", closefd=False) as file:
        request = marshal.load(file)
    if request["driver"] != "bwrap":
        confine.prctl(confine.SET_PDEATHSIG, signal.SIGKILL)
    send(out, [b"ready"])
    trial = Trial(request)
    problem = trial.compile() if request["language"] == "cpp" else b""
    for case in request["cases"]:
        send(out, [b"compile", b"0", b"", b"", problem] if problem else trial.test(case))


def send(file: int, parts: list[bytes]) -> None:
    """Sends each part as a message of multiprocessing.connection: its length in four bytes, then itself."""
    for part in parts:
        write(file, len(part).to_bytes(4, "big") + part)


def write(file: int, data: bytes) -> None:
    """Writes all data."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


class Trial:
    """A program and its limits."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request, self.limits = request, request["limits"]
        self.driver: str = request["driver"]
        self.scratch: str = request["scratch"]
        self.native = request["language"] == "cpp"
        self.own_file_system = self.driver == "bwrap"  # its scratch folder is one
        memory = self.limits["memory"] + (0 if self.native else pages() * os.sysconf("SC_PAGESIZE"))  # already in use
        self.rlimits = confine.limits(self.limits["seconds"], memory, self.limits["output"] + 1, request["tasks"])
        self.filter = None if self.driver == "none" else confine.SyscallFilter()
        self.tests = self.scratch if self.own_file_system else os.path.join(self.scratch, "tests")
        if not self.own_file_system:
            os.mkdir(self.tests)
        self.landlock: confine.Landlock | None = None
        if self.driver == "landlock":
            self.landlock = confine.Landlock([*request["readable"], self.scratch], DEVICES, self.tests)
        if request["function"]:
            import gspo.workers.json_codec  # noqa: F401  # once, not per test
        self.program = -1
        self.folder = os.path.join(self.tests, "test")
        os.mkdir(self.folder)
        os.chdir(self.folder)

    def test(self, case: dict[str, Any]) -> list[bytes]:
        """Runs one test. Returns the parts of its reply."""
        try:
            self.prepare_folder(case)
        except OSError as error:
            return [b"error", b"0", b"", b"", f"there is no room for the test: {error}".encode()]
        entry = sealed((case["stdin"] or "").encode("utf-8", "surrogateescape"))
        files = [entry, *(os.memfd_create(name) for name in ("out", "err", "value"))]
        try:
            pid = os.fork()
            if not pid:
                self.run_test(case, files)
            status, seconds, why = watch(pid, self.limits["seconds"], lambda: self.excess(pid))
            return self.reply(status, seconds, why, *files[1:])
        finally:
            for file in files:
                os.close(file)

    def prepare_folder(self, case: dict[str, Any]) -> None:
        """Makes a new folder for a test, with its files. Removes the previous test's folder."""
        before, self.folder = self.folder, os.path.join(self.tests, f"test-{os.urandom(8).hex()}")
        os.mkdir(self.folder)
        os.chdir(self.folder)
        with Suppressed(OSError):
            os.rmdir(before)
        if os.path.exists(before):
            os.waitpid(os.posix_spawn("/bin/rm", ["rm", "-rf", before], {}), 0)  # of any depth
        for name, text in case["files"].items():
            with open(name, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)

    def excess(self, pid: int) -> bytes:
        """How a running test ends because of its files (an empty one takes kernel memory); b"" if it goes on."""
        if self.own_file_system:
            system = os.statvfs(self.scratch)
            return b"output" if system.f_files - system.f_ffree > FILES else b""
        return b"" if self.landlock is None else overfull(self.tests, self.limits["scratch"], self.limits["output"], pid)

    def run_test(self, case: dict[str, Any], files: list[int]) -> None:
        """Runs the test in the forked, confined process. Never returns."""
        status = 1
        try:
            kept = files if self.landlock is None else [*files, self.landlock.rules]
            for i, file in enumerate(kept):
                os.dup2(file, 1000 + i)
            for i in range(len(kept)):
                os.dup2(1000 + i, i)
            os.closerange(len(kept), KEPT)
            confine_process(self.rlimits)
            if self.landlock is not None:
                self.landlock.rules = len(files)
                self.landlock.enter()
            if self.filter is not None:
                self.filter.enter()
            if self.native:
                os.execve(self.program, ["program", *case["words"]], {})
            status = run_program(self.request["source"], self.request["function"], case)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}".encode(errors="replace"))
        finally:
            os._exit(status)

    def reply(self, status: int, seconds: float, why: bytes, out: int, err: int, value: int) -> list[bytes]:
        """The reply for a test that has ended."""
        most: int = self.limits["output"]
        size = os.fstat(out).st_size
        text, detail = os.pread(out, most, 0), tail(err)
        result = os.pread(value, most, 0)
        last = detail.rstrip().rpartition(b"\n")[2]
        if why == b"timeout" or seconds > self.limits["seconds"] or status == -signal.SIGXCPU:
            word = b"timeout"
        elif why or size > most:
            word = why or b"output"
        elif status == 0 and (result or not self.request["function"]):
            word = b"ok"
        elif status and (last.startswith(b"MemoryError") or b"bad_alloc" in last or status == -signal.SIGKILL):
            word = b"memory"
        else:
            word = b"error"
            how = b"it ended before the function returned" if status == 0 else describe_end(status)
            detail = detail + b"\n" + how if detail else how
        return [word, b"%d" % int(seconds * 1e6), text, result, detail]

    def compile(self) -> bytes:
        """Compiles a C++ program. Returns the compiler's errors; empty on success."""
        with open("main.cpp", "w", encoding="utf-8", errors="replace") as file:
            file.write(self.request["source"])
        err = os.memfd_create("err")
        pid = os.fork()
        if not pid:
            try:
                os.dup2(err, 2)
                os.dup2(2, 1)
                os.dup2(sealed(b""), 0)  # else #include </dev/stdin> would read the request with all tests
                os.closerange(3, KEPT)
                seconds, tasks = self.limits["compile_seconds"], self.request["tasks"]
                confine_process(confine.limits(seconds, COMPILER_MEMORY, COMPILED, tasks))
                if self.driver == "landlock":
                    confine.Landlock(self.request["readable"], DEVICES, self.scratch).enter()
                if self.driver != "none":
                    confine.SyscallFilter(forks=True).enter()
                words = ["g++", *FLAGS, "-I", self.request["include"], "-o", f"{self.scratch}/program", "main.cpp"]
                os.execve(COMPILER, words, {"PATH": "/usr/bin:/bin", "TMPDIR": self.scratch, "LC_ALL": "C"})
            finally:
                os._exit(1)
        status, _, why = watch(pid, self.limits["compile_seconds"])
        errors = tail(err, first=True) or describe_end(status)
        os.close(err)
        if why:
            return b"the compiler took too long"
        if not status:
            self.open_program(os.path.join(self.scratch, "program"))
        return errors if status else b""

    def open_program(self, path: str) -> None:
        """Opens the compiled program and, where tests may write, unlinks it: no test can replace it for the next one."""
        os.chmod(path, 0o700)  # which the linker may not do
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.program = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, KEPT)
        os.close(file)
        if self.own_file_system:  # under Landlock no test may write there
            os.unlink(path)


def confine_process(rlimits: confine.Rlimits) -> None:
    """Restrictions on every process that the runner forks."""
    confine.prctl(confine.SET_PDEATHSIG, signal.SIGKILL)
    confine.limit(rlimits)
    confine.prctl(confine.SET_DUMPABLE, 1)  # else /dev/stdin cannot be opened


def run_program(source: str, function: str | None, case: dict[str, Any]) -> int:
    """Runs a Python program in this process. Returns its exit status."""
    import builtins
    import types

    module = types.ModuleType("solution" if function else "__main__")  # no main guard runs before a call
    module.__file__ = "solution.py"
    sys.modules["__main__"] = sys.modules[module.__name__] = module
    sys.argv = ["solution.py", *case["words"]]
    sys.path[:] = [path for path in sys.path if path not in OWN_MODULES] + [""]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # normally added by site
    sys.set_int_max_str_digits(DIGITS)
    status = 0
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), vars(module))
        if function:
            names = vars(module)
            call = names[function] if function in names else getattr(names["Solution"](), function)
            from gspo.workers.json_codec import packed  # loaded already

            write(3, packed(call(*case["arguments"] or ())))
    except SystemExit as error:
        status = error.code & 255 if isinstance(error.code, int) else int(error.code is not None)
        if status and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        trace = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(trace.tb_next if trace else None), None)
    return finish(status)


def finish(status: int) -> int:
    """Does what Python does at exit: joins threads, calls atexit handlers, flushes buffers. Returns the exit status."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        sys.stdout.flush()
    except BaseException as error:
        if not status:
            sys.excepthook(type(error), error, None)
        status = status or 120
    with Suppressed(BaseException):
        sys.stderr.flush()
    return status


def sealed(data: bytes) -> int:
    """An immutable (sealed) in-memory file with `data`, positioned at its start."""
    file = os.memfd_create("in", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    write(file, data)
    fcntl.fcntl(file, 1033, 15)  # F_ADD_SEALS: seal, shrink, grow, write
    os.lseek(file, 0, os.SEEK_SET)
    return file


def pages() -> int:
    """Address space of this process, in pages."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0])


def tail(file: int, first: bool = False) -> bytes:
    """The last DETAIL bytes of a file, or the first ones."""
    size = os.fstat(file).st_size
    return os.pread(file, DETAIL, 0 if first else max(0, size - DETAIL))


def describe_end(status: int) -> bytes:
    """How a process ended, in words."""
    if status < 0:
        with Suppressed(ValueError):
            return b"ended by " + signal.Signals(-status).name.encode()
    return b"exit status %d" % status
