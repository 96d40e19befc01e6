"""tests/seconds.txt: the processor seconds of each test function that takes long. `make seconds` writes it."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "seconds.txt"
LONG = 0.3
"""Processor seconds of a function's longest case from which it stands in the table."""
HEAD = """\
# Processor seconds of the test functions with a case of at least {long} s, on a quiet machine: the longest case, the sum of
# all cases, their number. Written by `make seconds`.
"""


class Entry:
    """What the cases of a function take: the longest and all, in processor seconds, and how many there are."""

    def __init__(self, most=0.0, total=0.0, cases=0):
        self.most, self.total, self.cases = most, total, cases

    def add(self, seconds):
        """One more case."""
        self.most, self.total, self.cases = max(self.most, seconds), self.total + seconds, self.cases + 1


def read(path=TABLE):
    """{function: Entry}. A function is named as in "objective/test_losses.py::test_name"."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        if line and not line.startswith("#"):
            most, total, cases, name = line.split(maxsplit=3)
            found[name] = Entry(float(most), float(total), int(cases))
    return found


def write(entries, path=TABLE):
    """Writes the long ones, by name."""
    kept = {name: entry for name, entry in sorted(entries.items()) if entry.most >= LONG}
    lines = [f"{e.most:7.2f} {e.total:8.2f} {e.cases:5d}  {name}\n" for name, e in kept.items()]
    path.write_text(HEAD.format(long=LONG) + "".join(lines))


def function(nodeid):
    """The name in the table of the function of a test: "tests/a/test_b.py::test_c[1-2]" is of "a/test_b.py::test_c"."""
    return nodeid.partition("[")[0].removeprefix("tests/")
