"""Pytest's options of this suite: which tests run, in how many processes, and what they may take.

    --part core     every function whose cases take at most a second, and the guards (tests/core.toml): `make test`
    --part rest     all others: `make test-all`
    --share 2/4     the third of four shares of what is chosen, by measured time
    --workers 2     in as many forked processes
    --record        writes what each function took into tests/seconds.txt

SLOW=1 in the environment has those run too that are marked slow, which take minutes.

Whatever is chosen, the run measures processor seconds. With --part core it fails where a case, or a folder of tests, takes
more than it may.
"""

import os
import sys
import time
from collections import defaultdict

import pytest
from _pytest.runner import runtestprotocol

from tools.suite import choice, table
from tools.suite.processor import processor_seconds
from tools.suite.workers import Workers

CASE = 1.0
"""Processor seconds that a case of the core may take, but for those of guards. One that takes more is run again."""
NOISE = 2.0
"""How much more the same work takes in another hour, whatever `standard_work` says: beyond this the run fails."""
CROWDED = 1.25
"""How much more a folder takes beside other work, which empties the caches: beyond this its budget is exceeded."""
USUAL = 0.0075
"""Processor seconds of `standard_work` on the machine that tests/seconds.txt was measured on, when it was quiet."""
AGAIN = 20.0
"""Processor seconds between two measurements of `standard_work`."""


def standard_work():
    """Processor seconds of something that is always the same: how fast this machine is, and how busy."""
    begin, found = time.process_time(), {}
    for i in range(60_000):
        found[i % 1000] = found.get(i % 1000, 0) + i
    return time.process_time() - begin


class Meter:
    """What the tests of this run took, in processor seconds."""

    def __init__(self):
        self.cases = {}  # nodeid: seconds, without fixtures that several tests share
        self.fixtures = defaultdict(float)  # file: seconds of those
        self.speeds = []
        self.shared = self.since = 0.0
        self.begin = None  # processor seconds when the test began
        self.speed = USUAL  # the last of `speeds`
        self.limits = lambda nodeid: False  # whether a test may take CASE
        self.tell = self.note

    def note(self, nodeid, seconds, shared, speed):
        """Keeps what a test took."""
        self.cases[nodeid] = seconds
        self.fixtures[nodeid.partition("::")[0]] += shared
        self.speeds += [speed] if speed else []

    @property
    def slowness(self):
        """How many processor seconds of this run are one of a quiet machine as that of the table."""
        return sum(self.speeds) / len(self.speeds) / USUAL if self.speeds else 1.0

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        """Times what several tests share."""
        if fixturedef.scope == "function":
            return (yield)
        begin = processor_seconds()
        try:
            return (yield)
        finally:
            self.shared += processor_seconds() - begin

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """Times a test."""
        begin = processor_seconds() if self.begin is None else self.begin
        self.shared, speed = 0.0, None
        result = yield
        self.begin = processor_seconds()
        seconds, shared = self.begin - begin - self.shared, self.shared
        self.since += seconds
        if self.since > AGAIN or not self.cases:
            self.speed = speed = standard_work()
            self.since = 0.0
        if seconds > CASE * self.speed / USUAL and self.limits(item.nodeid):  # what came first may have paid for others
            self.shared, begin = 0.0, processor_seconds()
            runtestprotocol(item, nextitem=nextitem, log=False)
            seconds = min(seconds, processor_seconds() - begin - self.shared)
        self.begin = processor_seconds()
        self.cases[item.nodeid] = seconds
        self.tell(item.nodeid, seconds, shared, speed)
        return result


def pytest_addoption(parser):
    """The options above."""
    group = parser.getgroup("gspo's suite")
    group.addoption("--part", choices=("core", "rest", "all"), default="all")
    group.addoption("--share", default="", metavar="K/N")
    group.addoption("--workers", type=int, default=0)
    group.addoption("--record", action="store_true")


def pytest_configure(config):
    """Has tests timed, and run by workers."""
    meter = Meter()
    if config.option.part == "core":
        meter.limits = lambda nodeid: not choice.is_guard(nodeid)
    config.pluginmanager.register(meter, "meter")
    if config.option.workers:
        config.pluginmanager.register(Workers(config.option.workers, choice.units), "workers")


def pytest_ignore_collect(collection_path, config):
    """Leaves out files without a test of the core."""
    if config.option.part == "core" and collection_path.suffix == ".py" and not choice.has_core(collection_path):
        return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out what is not chosen."""
    slow = os.environ.get("SLOW", "") == "1"
    kept = [item for item in items if slow or not item.get_closest_marker("slow")]
    kept = {*choice.chosen(kept, config.option.part, config.option.share)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def by_folder(meter):
    """{folder: processor seconds}, those of shared fixtures in it."""
    found = defaultdict(float)
    for name, seconds in [*meter.cases.items(), *meter.fixtures.items()]:
        folder = name.partition("::")[0].removeprefix("tests/").rpartition("/")[0]
        found[folder or "."] += seconds
    return dict(sorted(found.items()))


def over(meter, slowness):
    """What took more than the core may, a line each."""
    budget = choice.core()["budget"]
    for name, seconds in meter.cases.items():
        if seconds / slowness > NOISE * CASE and not choice.is_guard(name):
            yield (
                f"{name} took {seconds / slowness:.1f} processor seconds, and a case of the core may take {CASE:g}: make it "
                f"shorter, or move it to `make test-all` (make seconds TESTS={name.partition('::')[0]})"
            )
    for folder, seconds in by_folder(meter).items():
        most = budget.get(folder, 0)
        if seconds / slowness > CROWDED * most:
            yield f"tests/{folder} took {seconds / slowness:.0f} processor seconds of {most} (tests/core.toml)"


def record(meter, slowness, whole):
    """Writes what was measured into the table, in its seconds. whole: all functions of each file were."""
    entries, new = table.read(), defaultdict(table.Entry)
    for nodeid, seconds in meter.cases.items():
        new[table.function(nodeid)].add(seconds / slowness)
    files = {name.partition("::")[0] for name in new}
    kept = {name: entry for name, entry in entries.items() if not whole or name.partition("::")[0] not in files}
    table.write(kept | new)


def pytest_terminal_summary(terminalreporter, config):
    """Prints what was measured."""
    meter = config.pluginmanager.getplugin("meter")
    if not meter.cases:
        return
    slowness, found = meter.slowness, by_folder(meter)
    budget = choice.core()["budget"] if config.option.part == "core" else {}
    terminalreporter.section("processor seconds")
    if len(found) > 3:
        for folder, seconds in sorted(found.items(), key=lambda one: -one[1]):
            may = f" of {budget[folder]:4}" if folder in budget else ""
            terminalreporter.write_line(f"{seconds / slowness:7.1f}{may}  {folder}")
    total = sum(found.values())
    terminalreporter.write_line(
        f"{total / slowness:7.1f}{f' of {sum(budget.values()):4}' if budget else ''}  in all: {total:.0f} of this machine, "
        f"which took {slowness:.2f} seconds for what took one where they were measured"
    )
    over_budget = config.stash.get(OVER, [])
    for line in over_budget:
        terminalreporter.write_line(line, red=True)
    if not sys.stderr.isatty():  # a log that keeps standard error alone says what failed
        failed = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
        for line in [*(f"FAILED {report.nodeid}" for report in failed), *over_budget]:
            print(line, file=sys.stderr)
    if config.option.record:
        record(meter, slowness, config.option.part == "all")


OVER = pytest.StashKey()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Fails a run that took too much."""
    meter = session.config.pluginmanager.getplugin("meter")
    if session.config.option.part == "core" and meter.cases:
        session.config.stash[OVER] = [*over(meter, meter.slowness)]
        if session.config.stash[OVER] and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
