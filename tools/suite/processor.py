"""Processor seconds of a process and of all that it started, and whether they do anything at all."""

import os
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

TICK = 1 / os.sysconf("SC_CLK_TCK")


def processes():
    """{pid: (parent's pid, seconds)} of this machine. The seconds include those of children that have ended."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                text = Path(entry.path, "stat").read_text()
            except OSError:
                continue  # it has ended
            fields = text[text.rindex(")") + 2 :].split()  # from the state on: the name may hold spaces
            found[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) * TICK
    return found


def descendants(pid, found=None):
    """The processes that `pid` started, and those that they started. A daemon that left the tree is not seen."""
    children = {}
    for child, (parent, _) in (found or processes()).items():
        children.setdefault(parent, []).append(child)
    todo, every = [pid], []
    while todo:
        below = children.get(todo.pop(), [])
        every += below
        todo += below
    return every


def processor_seconds():
    """Processor seconds of this process and its descendants, running or ended."""
    ended = getrusage(RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return total  # it has no children: the look at all processes of the machine is spared
    found = processes()
    return total + sum(found[pid][1] for pid in descendants(os.getpid(), found))


def active(pid):
    """Whether a thread of `pid` or of a descendant runs, waits for a processor or for the disk at this moment. On a busy
    machine that is so as often as on an idle one; of what hangs it is never so.
    """
    for process in [pid, *descendants(pid)]:
        for path in Path(f"/proc/{process}/task").glob("*/stat"):
            try:
                text = path.read_text()
            except OSError:
                continue  # it has ended
            if text[text.rindex(")") + 2] in "RD":
                return True
    return False
