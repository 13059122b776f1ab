"""The suite from both of its ends at once. Most tests at its front wait, for a server or a browser; what they leave of
the cores is used by a second process, which begins with the last test, computes, and goes second. They meet somewhere.

A plugin of pytest (`-p tests.both_ends`): tests are named, reported and counted as they are without it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from socket import socketpair
from tempfile import TemporaryFile
from typing import Any

import pytest

LINE = "CAROUSEL_TESTS_FROM_THE_END"  # on which the second process hears which test is next: a file descriptor

Reports = list[dict[str, Any]]


class FromTheFront:
    """In the process that was asked: runs what nobody has begun, and tells of the others when their turn comes."""

    def __init__(self, session: pytest.Session) -> None:
        self._items = session.items
        self._place = {id(item): place for place, item in enumerate(session.items)}
        self._first, self._last = 0, len(session.items) - 1  # of those that nobody has begun
        self._lock = threading.Lock()
        self._told: dict[int, Future[Reports]] = {}
        ours, theirs = socketpair()
        self._line, self._output = Connection(ours.detach()), TemporaryFile("w+")  # noqa: SIM115 - until it has ended
        with theirs:
            self._second = subprocess.Popen(
                ["nice", "-n", "19", sys.executable, "-m", "pytest", *session.config.invocation_params.args,
                 "-p", "no:cacheprovider"],
                cwd=session.config.invocation_params.dir, env=os.environ | {LINE: str(theirs.fileno())},
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        threading.Thread(target=self._hand_out, name="both-ends", daemon=True).start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Ours is left to pytest."""
        place = self._place[id(item)]
        with self._lock:
            if place <= self._last:
                self._first = place + 1
                return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports_of(item, self._told[place]):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_unconfigure(self) -> None:
        """Whoever stops early waits for none of it."""
        if self._second.poll() is None:
            self._second.send_signal(signal.SIGINT)
            try:
                self._second.wait(20)
            except subprocess.TimeoutExpired:
                self._second.kill()
        self._line.close()
        self._output.close()

    def _hand_out(self) -> None:
        told: Future[Reports] = Future()
        try:
            if self._line.recv() != [item.nodeid for item in self._items]:
                return  # what is collected changes from one process to the next: all of it is run here
            while (place := self._take_last(told)) is not None:
                self._line.send(place)
                told.set_result(self._line.recv())
                told = Future()
            self._line.send(None)
        except (EOFError, OSError) as error:
            told.set_exception(error)

    def _take_last(self, told: Future[Reports]) -> int | None:
        with self._lock:
            if self._first > self._last:
                return None
            place, self._last = self._last, self._last - 1
            self._told[place] = told
            return place

    def _reports_of(self, item: pytest.Item, told: Future[Reports]) -> Iterable[pytest.TestReport]:
        try:
            reports = told.result()
        except (EOFError, OSError):
            self._output.seek(0)
            said = f"the process that ran it has ended:\n{self._output.read()[-4000:]}"
            yield pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
            return
        for report in reports:
            yield item.config.hook.pytest_report_from_serializable(config=item.config, data=report)


class FromTheEnd:
    """In the second process: runs what it is told to."""

    def __init__(self, config: pytest.Config, line: int) -> None:
        self._config = config
        self._line = Connection(line)
        self._reports: Reports = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """From the last test on; each is told of when it has ended."""
        items = session.items
        self._line.send([item.nodeid for item in items])
        while (place := self._line.recv()) is not None:
            item, after = items[place], items[place - 1] if place else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            self._line.send(self._reports)
            self._reports = []
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """It travels."""
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def pytest_configure(config: pytest.Config) -> None:
    """In the second process."""
    if LINE in os.environ:
        config.pluginmanager.register(FromTheEnd(config, int(os.environ.pop(LINE))), "from the end")


def pytest_collection_finish(session: pytest.Session) -> None:
    """In the first one."""
    manager = session.config.pluginmanager
    if not (session.config.option.collectonly or manager.hasplugin("from the end")):
        manager.register(FromTheFront(session))
