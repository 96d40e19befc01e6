"""Runs the tests in forked processes: what they import is imported, and what there is collected, once for all of them.

The parent hands out units, each the tests of one file, and prints what the workers report. A worker that dies fails the test
that it ran, and so does one that hangs; what is left of its unit goes to another.
"""

import contextlib
import multiprocessing.util
import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from multiprocessing import Pipe, connection, forkserver, resource_tracker
from multiprocessing.connection import wait

import pytest

from tools.suite.processor import active, descendants

LOOK = 1.0
"""Seconds between two looks at workers that report nothing."""
HANGS = 400
"""Looks after which a test hangs, if fewer than a tenth of them saw a thread that ran or wanted to."""


class Sender:
    """In a worker: what the parent must hear of."""

    def __init__(self, config, connection):
        self.config, self.connection = config, connection

    def pytest_runtest_logreport(self, report):
        """Sends it."""
        self.config.hook.pytest_report_teststatus(report=report, config=self.config)  # fails a test for its subtests
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        self.connection.send(("report", data))


class Worker:
    """A forked process, and what it still has to run."""

    def __init__(self, session, number, take):
        self.take, self.open = take, True  # open: it waits for units
        self.units = deque()  # lists of numbers of tests; it runs the first
        self.begun = None  # the number of the test that it runs
        self.looks, self.looked = deque(maxlen=HANGS), time.monotonic()
        self.connection, theirs = Pipe()
        for _ in range(2):  # it knows what comes next, so that fixtures for both are kept
            self.give()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _work(session, number, theirs)
        theirs.close()

    def give(self):
        """Hands it another unit, or the word that there is none."""
        if not self.open:
            return
        unit = self.take()
        self.open = unit is not None
        if unit:
            self.units.append(list(unit))
        self.connection.send(unit)

    def hangs(self):
        """Whether its test does nothing, by a look every LOOK seconds."""
        if time.monotonic() > self.looked + LOOK:
            self.looks.append(active(self.pid))
            self.looked = time.monotonic()
        return len(self.looks) == HANGS and sum(self.looks) < HANGS / 10

    def end(self):
        """Ends it and what it started."""
        for pid in descendants(self.pid):
            _kill(pid, signal.SIGKILL)
        _kill(self.pid, signal.SIGABRT)  # pytest's faulthandler prints what each of its threads did
        os.waitpid(self.pid, 0)


def _kill(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _work(session, number, parent):
    """What a worker does. It never returns."""
    status = 1
    try:
        config = session.config
        capture = config.pluginmanager.getplugin("capturemanager")
        capture._global_capturing = None  # the parent's, whose file is one for all; handlers of logs may still write into it
        capture.start_global_capturing()
        capture.suspend_global_capture()
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(Sender(config, parent))
        config.pluginmanager.getplugin("meter").tell = lambda *row: parent.send(("seconds", row))
        factory = config._tmp_path_factory
        factory._basetemp = factory.getbasetemp() / f"worker{number}"
        factory._basetemp.mkdir()
        _fork_rank_server()
        unit = parent.recv()
        while unit:
            following = parent.recv()
            after = [*unit[1:], following[0] if following else None]
            for this, then in zip(unit, after):
                parent.send(("begin", this))
                item, nextitem = session.items[this], None if then is None else session.items[then]
                config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            parent.send(("end", None))
            unit = following
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        multiprocessing.util._exit_function()  # clears up what multiprocessing has made
        os._exit(status)


def _fork_rank_server():
    """The server that multiprocessing has for ranks, forked off here: it has what is imported already. A new one would
    import for five seconds. It must come before any test: after a backward pass no fork can make another.
    """
    server, listening = forkserver._forkserver, socket.socket(socket.AF_UNIX)
    address = connection.arbitrary_address("AF_UNIX")
    listening.bind(address)
    listening.listen()
    ours, theirs = os.pipe()  # closed when this worker has ended, which ends the server
    resource_tracker.ensure_running()
    pid = os.fork()
    if not pid:
        try:
            os.close(theirs)
            forkserver.main(listening.fileno(), ours, [])
        finally:  # it ends with SystemExit
            os._exit(0)
    os.close(ours)
    listening.close()
    server._forkserver_address, server._forkserver_alive_fd, server._forkserver_pid = address, theirs, pid


class Workers:
    """A plugin of pytest: `count` workers run the tests, in units that `units_of` makes of the items."""

    def __init__(self, count, units_of):
        self.count, self.units_of = count, units_of

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """Hands out the tests and prints what comes back."""
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        if session.config.option.collectonly:
            return True
        session.config._tmp_path_factory.getbasetemp()  # made here, so that it is one for all
        self.session, self.units = session, deque(self.units_of(session.items))
        self.workers, self.started = [], 0
        try:
            self.more()
            while self.workers:
                self.step()
        finally:
            for worker in self.workers:
                worker.end()
        return True

    def more(self):
        """Starts workers where there is work for them."""
        while self.units and len(self.workers) < self.count:
            self.started += 1
            self.workers.append(Worker(self.session, self.started, lambda: self.units.popleft() if self.units else None))

    def step(self):
        """Hears one message of each worker that has something to tell."""
        by_connection = {worker.connection: worker for worker in self.workers}
        for ready in wait(list(by_connection), LOOK):
            worker = by_connection[ready]
            try:
                kind, value = ready.recv()
            except EOFError:
                self.ended(worker)
                continue
            worker.looks.clear()
            getattr(self, kind)(worker, value)
        for worker in [worker for worker in self.workers if worker.hangs()]:
            worker.end()
            self.lost(worker, f"it hung: {HANGS * LOOK:.0f} s without anything that ran. Above stands what it did")
        for why in filter(None, (self.session.shouldfail, self.session.shouldstop)):
            raise self.session.Failed(why)

    def begin(self, worker, number):
        """A worker begins a test."""
        worker.begun = number
        item = self.session.items[number]
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def report(self, worker, data):
        """A worker has a report of its test."""
        config = self.session.config
        config.hook.pytest_runtest_logreport(report=config.hook.pytest_report_from_serializable(config=config, data=data))

    def seconds(self, worker, row):
        """A worker's test is done."""
        worker.units[0].remove(worker.begun)
        worker.begun = None
        self.session.config.pluginmanager.getplugin("meter").tell(*row)

    def end(self, worker, _):
        """A worker has done a unit."""
        worker.units.popleft()
        worker.give()

    def ended(self, worker):
        """A worker has ended: having done all, or by accident."""
        _, status = os.waitpid(worker.pid, 0)
        if worker.units or status:
            self.lost(worker, f"the process that ran it ended with {os.waitstatus_to_exitcode(status)}")
        else:
            self.workers.remove(worker)

    def lost(self, worker, why):
        """Fails the test that a worker ran, and has another do the rest."""
        self.workers.remove(worker)
        if worker.begun is not None:
            item = self.session.items[worker.begun]
            worker.units[0].remove(worker.begun)
            report = pytest.TestReport(item.nodeid, item.location, dict(item.keywords), "failed", why, "call")
            item.ihook.pytest_runtest_logreport(report=report)
        self.units.extendleft(unit for unit in reversed(worker.units) if unit)
        self.more()
