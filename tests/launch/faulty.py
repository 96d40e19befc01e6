"""`gspo`, in whose ranks something goes wrong: python -m tests.launch.faulty COMMAND...

FAULTS is a list with a fault for each life of the run: [what, rank, place, call, part]. At this call of `module:name` on
this rank (of those whose arguments contain `part`), or at the third item that a generator gives there:

    kill    the rank ends itself by SIGKILL
    gpu     its GPU fails
    wait    it writes its number into the file `reached`, and waits to be killed, or until that file is gone
    tokens  from this call on it has no memory for a batch of more than `part` tokens
    slow    it takes `part` seconds longer
"""

import atexit
import contextlib
import ctypes
import functools
import importlib
import inspect
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from tests.forked import Forked
from tests.launch.started import NAMED

REACHED = Path("reached")
PR_SET_NAME = 15


def act(what, part):
    if what == "slow":
        time.sleep(float(part))
        return
    names = sorted(str(path) for path in Path().glob("*/checkpoints/**/*"))
    Path("listing.tmp").write_text("\n".join(names))
    Path("listing.tmp").rename("listing")
    if what == "gpu":
        raise importlib.import_module("torch").AcceleratorError("CUDA error: uncorrectable ECC error encountered")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    Path("reached.tmp").write_text(os.environ["RANK"])
    Path("reached.tmp").rename(REACHED)
    while REACHED.exists():
        time.sleep(0.01)


def interrupted(items, what, part):
    for number, item in enumerate(items):
        if number == 2:
            act(what, part)
        yield item


def arm(what, rank, place, call, part=""):
    """Puts the fault into its place."""
    module, _, names = place.partition(":")
    holder = importlib.import_module(module)
    *path, name = names.split(".")
    for each in path:
        holder = getattr(holder, each)
    real, calls = getattr(holder, name), 0

    @functools.wraps(real)
    def broken(*args, **more):
        nonlocal calls
        if what == "tokens":
            calls += 1
            if calls >= call and len(args[1].forest.tokens) > int(part):
                raise importlib.import_module("torch").OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return real(*args, **more)
        if what == "slow" or str(part) in "".join(map(str, args)):
            calls += 1
        now = calls == call
        if now and not inspect.isgeneratorfunction(real):
            act(what, part)
        made = real(*args, **more)
        return interrupted(made, what, part) if now and inspect.isgeneratorfunction(real) else made

    setattr(holder, name, broken)


def live(arguments, environment):
    """What a process does that has just been forked, in place of one that Python has just begun."""
    os.setsid()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the store is the launcher's
    os.environ.clear()
    os.environ.update(environment)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    ctypes.CDLL(None).prctl(PR_SET_NAME, NAMED.format(environment["RANK"]).encode())
    status = 1
    try:
        status = begin(arguments)
        threading._shutdown()
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


@contextlib.contextmanager
def forked(command, ranks, variables):
    """Ranks as `here` starts them, but forked from this process, which has imported what they need: a life of a rank takes
    seconds less. test_launch.py starts them by `here`.
    """
    from gspo.launch.processes import of_rank

    started = []
    try:
        for number in range(ranks):
            environment = of_rank(variables, number, ranks, number)
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                live(command[command.index("gspo") + 1 :], environment)
            started.append(Forked(pid))
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait()


def lead_and_follow():
    """The launcher starts ranks that are as faulty as itself."""
    from gspo.launch import launch
    from gspo.launch.processes import importing

    with importing():
        importlib.import_module("tests.warm")
    launch.launch = functools.partial(launch.launch, start=forked)


def begin(arguments):
    """`gspo ARGUMENTS`, with the fault of this life. Returns the exit status."""
    from gspo.cli.main import main

    if "RANK" in os.environ:
        faults = json.loads(os.environ["FAULTS"])
        life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if life < len(faults) and faults[life] and faults[life][1] == int(os.environ["RANK"]):
            arm(*faults[life])
    else:
        lead_and_follow()
    return main(arguments)


if __name__ == "__main__":
    sys.exit(begin(sys.argv[1:]))
