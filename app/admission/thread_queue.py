"""ThreadQueue: runs long synchronous work in threads, a bounded number at a time, interactive requests first and
tenants in rotation.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from app.admission.cpu_shares import CpuShares
from app.admission.rotation import Rotation
from app.streams.timeline import IntakeTimeline
from engine.types import ServiceClass, WaitReason

RELEASE_BYTES = 1 << 20  # or characters of inputs after which freed memory is returned to the system
RELEASE_SECONDS = 1.0  # delay after the last of them
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of mallopt(3)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Caller:
    """Origin of the work in a queue: id of the tenant, class of the request, and the timeline that records waiting."""

    tenant: str = ""
    service_class: ServiceClass = ServiceClass.STANDARD
    intake: IntakeTimeline | None = None


NO_CALLER = Caller()


class ThreadQueue:
    """Bounded executor of functions in threads.

    With a limited `max_cpu_share`, a tenant's functions wait until earlier ones have used no more than that share of a
    core: their threads compete with the engine for cores, and a client that sends only large inputs would occupy a
    whole core.
    """

    def __init__(self, max_concurrent: int, reserved: int = 0, max_cpu_share: float = math.inf) -> None:
        """max_concurrent: functions at once. reserved: number of these for interactive requests, because a running
        function cannot be stopped. max_cpu_share: maximum share of a core for one tenant.
        """
        self._shares = CpuShares(max_cpu_share)
        self._pause_timer: asyncio.TimerHandle | None = None
        self._releasing: asyncio.TimerHandle | None = None
        self.pending = 0  # functions that wait or run
        self._read = 0  # bytes or characters since memory was last returned
        self._free = max_concurrent
        self._reserved = reserved
        self._waiting = {service_class: Rotation() for service_class in ServiceClass}

    async def run(
        self,
        work: Callable[[], Result],
        caller: Caller = NO_CALLER,
        *,
        size: int = 0,
        cpu_seconds_spent: float = 0.0,
    ) -> Result:
        """Return the result of `work`.

        A caller that is cancelled before its turn costs nothing; afterwards its place stays occupied until `work` ends,
        and an exception of `work` is dropped. size: bytes or characters that `work` reads, whose memory is returned to
        the system when nothing runs. cpu_seconds_spent: CPU seconds already used for the input, which count towards the
        share.
        """
        self.pending += 1
        self._read += size
        try:
            await self._turn(caller, size)
            used: list[float] = []
            running = asyncio.get_running_loop().run_in_executor(None, _timed, work, used)
            running.add_done_callback(lambda ended: self._end(ended, caller.tenant, cpu_seconds_spent + sum(used)))
            try:
                return await asyncio.shield(running)
            finally:
                # The future holds the exception, whose traceback holds this frame: a cycle that would keep everything
                # that the caller's frames refer to, such as a body of megabytes, until the garbage collector runs.
                del running
        finally:
            self.pending -= 1
            if self._read >= RELEASE_BYTES and not self.pending and self._releasing is None:
                self._releasing = asyncio.get_running_loop().call_later(RELEASE_SECONDS, self._release)

    def _release(self) -> None:
        self._releasing = None
        if not self.pending:  # otherwise after the last of them
            self._read = 0
            asyncio.get_running_loop().run_in_executor(None, trim_malloc)

    async def _turn(self, caller: Caller, size: int) -> None:
        mine = self._waiting[caller.service_class].join(caller.tenant, size)
        self._admit_waiting()
        if mine.done():
            return
        began = time.monotonic()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():  # the place was granted at the moment of the cancellation
                self._release_place()
            raise
        if caller.intake is not None:
            caller.intake.record_wait(began, time.monotonic(), WaitReason.TOKENIZATION)

    def _end(self, running: asyncio.Future[Any], tenant: str, cpu_seconds: float) -> None:
        if not running.cancelled():
            running.exception()  # mark it as retrieved: asyncio would log it as an error if the caller was cancelled
        self._shares.spend(tenant, time.monotonic(), cpu_seconds)
        self._release_place()

    def _release_place(self) -> None:
        self._free += 1
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        now, pause = time.monotonic(), math.inf

        def may_go(tenant: str, _: int) -> bool:
            nonlocal pause
            wait = self._shares.wait(tenant, now)
            pause = min(pause, wait or math.inf)
            return not wait

        for service_class, waiting in self._waiting.items():
            while self._free > (0 if service_class is ServiceClass.INTERACTIVE else self._reserved):
                if not waiting.grant(may_go):
                    break
                self._free -= 1
        if pause < math.inf:
            self._pause(pause)

    def _pause(self, seconds: float) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
        self._pause_timer = asyncio.get_running_loop().call_later(seconds, self._admit_waiting)


def _timed(work: Callable[[], Result], used: list[float]) -> Result:
    """Return the result of `work`, and add the CPU seconds of this thread to `used`."""
    began = time.thread_time()
    try:
        return work()
    finally:
        used.append(time.thread_time() - began)


def trim_malloc() -> None:
    """Return freed memory to the system: glibc keeps it for each thread that allocated, and a tokenizer allocates a
    hundred times the size of its text.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def limit_malloc_cache() -> None:
    """Make glibc return large buffers to the system when they are freed. By default it raises the size limit for that
    with every large buffer that is freed, and keeps all smaller ones.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(None)
            library.mallopt(M_MMAP_THRESHOLD, 1 << 18)
            library.mallopt(M_TRIM_THRESHOLD, 1 << 20)
