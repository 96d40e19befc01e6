"""Which tests are the core, which the rest; shares of them of about the same time; and in what units workers take them."""

import re
import tomllib
from collections import defaultdict
from functools import cache

import pytest

from tools.suite import table

CORE = table.ROOT / "tests" / "core.toml"
SHORT = 0.75
"""A function of which a case takes more processor seconds than this is no part of the core, unless it is a guard: less than
the second that a case may take, since the same work takes half as much again at another time."""
WHOLE = 30.0
"""Seconds of a file from which its tests are more than one unit."""


@cache
def core():
    """tests/core.toml: the guards, parts of names that are left to the rest, and what the core may take."""
    return tomllib.loads(CORE.read_text())


def guards():
    """{name of a function, or of a case: why it is a guard}."""
    return core()["guards"]


def is_guard(nodeid):
    """Whether a test, or its function, is named as a guard."""
    return bool({table.function(nodeid), nodeid.removeprefix("tests/")} & guards().keys())


@cache
def measured():
    """The committed table."""
    return table.read()


def in_core(nodeid):
    """Whether a test belongs to the core."""
    if is_guard(nodeid):
        return True
    if any(part in nodeid for part in core()["rest"]):
        return False
    name = table.function(nodeid)
    return name not in measured() or measured()[name].most <= SHORT


def has_core(path):
    """Whether a file may hold tests of the core; it is not imported for that."""
    name = path.relative_to(table.ROOT / "tests").as_posix() if path.is_relative_to(table.ROOT / "tests") else None
    if name is None or not path.name.startswith("test_"):
        return True
    functions = re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    named = {guard.partition("[")[0] for guard in guards()}
    return any(f"{name}::{function}" in named or in_core(f"{name}::{function}") for function in functions)


def seconds(nodeid):
    """What a test takes, as far as the table tells."""
    entry = measured().get(table.function(nodeid))
    return entry.total / entry.cases if entry else 0.05


def share(nodeids, wanted):
    """Those of one of N shares, "K/N". Each file is in one share: the longest come first, each into the shortest share.
    Raises UsageError where `wanted` is no such value.
    """
    if not re.fullmatch(r"\d+/[1-9]\d*", wanted):
        raise pytest.UsageError(f"--share {wanted}: give K/N, such as 0/4 for the first of four")
    number, shares = map(int, wanted.split("/"))
    files = defaultdict(list)
    for nodeid in nodeids:
        files[nodeid.partition("::")[0]].append(nodeid)
    sums, found = [0.0] * shares, [set() for _ in range(shares)]
    for _, names in sorted(files.items(), key=lambda one: (-sum(map(seconds, one[1])), one[0])):
        least = sums.index(min(sums))
        sums[least] += sum(map(seconds, names))
        found[least] |= set(names)
    return found[number % shares]


def chosen(items, part, wanted):
    """The items of a part, and of a share of it."""
    if part != "all":
        items = [item for item in items if in_core(item.nodeid) == (part == "core")]
    if wanted:
        names = share([item.nodeid for item in items], wanted)
        items = [item for item in items if item.nodeid in names]
    return items


def units(items):
    """Lists of numbers of items, the longest first: those of one file, which share its fixtures. A file that takes more than
    WHOLE seconds is more than one unit.
    """
    files = defaultdict(list)
    for number, item in enumerate(items):
        files[item.nodeid.partition("::")[0]].append(number)
    found = []
    for numbers in files.values():
        unit, total = [], 0.0
        for number in numbers:
            unit.append(number)
            total += seconds(items[number].nodeid)
            if total > WHOLE:
                found.append((total, unit))
                unit, total = [], 0.0
        if unit:
            found.append((total, unit))
    return [unit for _, unit in sorted(found, key=lambda one: -one[0])]
