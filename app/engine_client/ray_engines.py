"""RayEngines: the engines that a service in a Ray cluster has in its directory. Loads no part of Ray itself.

A child process asks the directory and prints what it finds (`app.ray_launcher.watch`). Ray ends a process that has lost
the cluster, starts threads in it and handles signals; a server of running answers should have none of these.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from app.child_environment import module_environment
from app.engine_client.tcp_engine import EngineAccess, TcpEngine
from app.engine_client.transport import TransportMaker
from app.remote_settings import RayService
from engine.network import Address
from engine.parent_death import bound_command

MAX_LIST_SECONDS = 10.0  # for which a list of engines is valid; the child prints one every second
FIRST_SECONDS = 15.0  # for the first list, before which the child joins the cluster


class DirectoryReport(msgspec.Struct, frozen=True):
    """One line of the child process."""

    token: str = ""
    engines: tuple[str, ...] = ()  # HOST:PORT
    problem: str = ""  # reason for which the engines are not known


class RayEngines:
    """Engines in the directory of a service in a Ray cluster."""

    is_fixed = False

    def __init__(
        self,
        service: RayService,
        access: EngineAccess,
        command: Sequence[str] = (sys.executable, "-m", "app.ray_launcher.watch"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """command: that prints a `DirectoryReport` on each line, given the cluster and the service."""
        self._service = service
        self._access = access
        self._command = [*command, service.cluster, service.name]
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._report: DirectoryReport | None = None
        self._reported_at = 0.0
        self._has_report = threading.Event()  # or the child has ended without one

    async def engines(self) -> Mapping[str, TransportMaker]:
        """Return the engines of the last report. Raises `OSError` without a recent one."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        if not self._has_report.is_set():
            await asyncio.to_thread(self._has_report.wait, FIRST_SECONDS)
        report = self._report
        if report is None:
            raise OSError(f"{self._service}: there is no answer of the directory yet")
        if report.problem:
            raise OSError(f"{self._service}: {report.problem}")
        if (age := self._clock() - self._reported_at) > MAX_LIST_SECONDS:
            raise OSError(f"{self._service}: the last answer of the directory is {age:.0f} s old")
        self._access.token = report.token
        addresses = sorted({Address.parse(each, "address") for each in report.engines}, key=str)
        return {f"engine {address}": partial(TcpEngine, address=address, access=self._access) for address in addresses}

    def expect(self, fingerprint: str) -> None:
        """Do as `EngineSource.expect`."""
        self._access.fingerprint = fingerprint

    def close(self) -> None:
        """End the child process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        """Start the child process on the thread of the event loop, which outlives it."""
        process = self._process = subprocess.Popen(
            bound_command(self._command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=module_environment()
        )
        threading.Thread(target=self._read, args=(process,), name="ray directory", daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                try:
                    report = msgspec.json.decode(line, type=DirectoryReport)
                except msgspec.DecodeError:  # Ray may print lines of its own
                    continue
                self._report, self._reported_at = report, self._clock()
                self._has_report.set()
        self._has_report.set()
