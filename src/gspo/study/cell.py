"""A cell's process: python -m gspo.study.cell PARENT COMMAND... It saves and ends where PARENT, the study's process, has."""

from __future__ import annotations

import signal
import sys

from gspo.cli import main
from gspo.data.keeper import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]), signal.SIGTERM)  # as a study that is stopped does
    sys.exit(main(sys.argv[2:]))
