"""Studies and their cells as forks of this process, which has loaded what they need: to start one takes seconds."""

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import torch

import gspo.api  # noqa: F401
import tests.warm  # noqa: F401
from gspo.cli.main import main
from gspo.compare import cells
from gspo.workers.supervisor import end_with_parent
from tests.forked import Forked


class ForkedGspo(Forked):
    """As a subprocess.Popen that is given a command of gspo: `python -m gspo WORDS` or `python -m gspo.compare.cell ...`."""

    def __init__(self, command, stdout, stderr=None, stdin=None, start_new_session=False, env=None):
        module, *words = command[command.index("-m") + 1 :]
        super().__init__(os.fork())
        if self.pid:
            return
        status = 1  # whatever happens, this never goes on to pytest
        try:
            if start_new_session:
                os.setsid()
            files = [os.open(os.devnull, os.O_RDWR) if one == subprocess.DEVNULL else one for one in (stdin, stdout, stderr)]
            files[2] = files[1] if stderr == subprocess.STDOUT else files[2]
            for number, one in enumerate(files):
                if one is not None:
                    os.dup2(one if isinstance(one, int) else one.fileno(), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            os.environ |= env or {}
            torch.set_num_threads(1)
            if module == "gspo.compare.cell":
                end_with_parent(int(words.pop(0)), signal.SIGTERM)
            status = main(words)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


FORKS = SimpleNamespace(Popen=ForkedGspo, STDOUT=subprocess.STDOUT, DEVNULL=subprocess.DEVNULL)


def fork_cells(patch):
    """From here on cells are forks."""
    patch.setattr(cells, "subprocess", FORKS)
