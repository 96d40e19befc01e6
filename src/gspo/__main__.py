"""`python -m gspo`: the command line, for whoever starts it by its interpreter."""

import sys

from gspo.cli import main

if __name__ == "__main__":
    sys.exit(main())
