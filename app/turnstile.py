"""Turnstile: long synchronous work in threads, a bounded number at a time, interactive requests first."""

from __future__ import annotations

import asyncio
import ctypes
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import TypeVar

from app.audit import Intake
from engine.types import Cause, ServiceClass

Result = TypeVar("Result")


class Turnstile:
    """Run functions in threads. `places`: how many at once; `reserved`: how many of these are kept for interactive
    requests, as a function that runs cannot be stopped."""

    def __init__(self, places: int, reserved: int = 0) -> None:
        self.pending = 0  # functions that wait or run
        self._free = places
        self._reserved = reserved
        self._waiting: list[tuple[ServiceClass, int, asyncio.Future[None]]] = []  # a heap
        self._arrivals = count()

    async def run(
        self,
        work: Callable[[], Result],
        service_class: ServiceClass = ServiceClass.STANDARD,
        *,
        intake: Intake | None = None,
    ) -> Result:
        """Return the result of `work`. A caller that is cancelled before its turn costs nothing; afterwards its place
        stays taken until `work` returns. The time spent waiting goes to `intake`."""
        self.pending += 1
        try:
            await self._turn(service_class, intake)
            running = asyncio.get_running_loop().run_in_executor(None, work)
            running.add_done_callback(lambda _: self._pass_on())
            return await asyncio.shield(running)
        finally:
            self.pending -= 1

    async def _turn(self, service_class: ServiceClass, intake: Intake | None) -> None:
        mine = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (service_class, next(self._arrivals), mine))
        self._let_in()
        if mine.done():
            return
        began = time.monotonic()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # the place was given to it in the moment of its cancellation
                self._pass_on()
            raise
        if intake is not None:
            intake.waited(began, time.monotonic(), Cause.TEXTS)

    def _pass_on(self) -> None:
        self._free += 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            service_class, _, first = self._waiting[0]
            if not first.done():
                if self._free <= (0 if service_class is ServiceClass.INTERACTIVE else self._reserved):
                    return
                self._free -= 1
                first.set_result(None)
            heappop(self._waiting)


def release_memory() -> None:
    """Return freed memory to the system: glibc keeps it for each thread that allocated, and a tokeniser allocates a
    hundred times the size of its text."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
