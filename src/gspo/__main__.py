"""`python -m gspo`: the command line, for whoever starts it by its interpreter."""

import sys

if not sys.flags.safe_path and sys.path:  # `-m` puts the current folder first: a random.py there is not Python's
    sys.path.append(sys.path.pop(0))

from gspo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
