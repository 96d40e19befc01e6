"""The process of a cell: python -m gspo.compare.cell PARENT COMMAND... It saves and exits when process PARENT has ended."""

from __future__ import annotations

import os
import signal
import sys

from gspo.workers.supervisor import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), signal.SIGTERM)  # the signal of a stopped study; this setting survives exec
    os.execv(sys.executable, [sys.executable, "-P", "-m", "gspo", *sys.argv[2:]])
