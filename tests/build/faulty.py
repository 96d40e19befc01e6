"""`gspo`, in whose ranks something goes wrong: python -m tests.build.faulty COMMAND...

FAULTS is a list with a fault for each life of the run: [what, rank, place, call, part]. At this call of `module:name` on
this rank (of those whose arguments contain `part`), or at the third item that a generator gives there:

    kill    the rank ends itself by SIGKILL
    wait    it writes its number into the file `reached`, and waits to be killed, or until that file is gone
    tokens  from this call on it has no memory for a batch of more than `part` tokens
    slow    it takes `part` seconds longer
"""

import functools
import importlib
import inspect
import json
import os
import signal
import sys
import time
from pathlib import Path

REACHED = Path("reached")


def act(what, part):
    if what == "slow":
        time.sleep(float(part))
        return
    names = sorted(str(path) for path in Path().glob("*/checkpoints/**/*"))
    Path("listing.tmp").write_text("\n".join(names))
    Path("listing.tmp").rename("listing")
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


def lead_and_follow():
    """The launcher starts ranks that are as faulty as itself."""
    from gspo.build import launch
    from gspo.build.processes import here

    def started(command, ranks, variables):
        return here([sys.executable, "-m", "tests.build.faulty", *command[command.index("gspo") + 1 :]], ranks, variables)

    launch.launch = functools.partial(launch.launch, start=started)


if __name__ == "__main__":
    from gspo.cli import main

    if "RANK" in os.environ:
        faults = json.loads(os.environ["FAULTS"])
        life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if life < len(faults) and faults[life] and faults[life][1] == int(os.environ["RANK"]):
            arm(*faults[life])
    else:
        lead_and_follow()
    sys.exit(main())
