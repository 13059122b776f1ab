"""EngineClient: the API's side of the engine. Starts it, sends requests, and calls their sinks with events. If the
engine dies, it starts another one, which resumes from the output so far.

Messages are handled by plain function calls, so that a token costs no task switch. Has no knowledge of HTTP or text.
"""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from enum import Enum

from msgspec.structs import replace

from app.engine_client.engine_process import EngineProcess
from app.engine_client.in_flight import InFlight, Sink
from app.engine_client.restart_policy import MAX_FAILED_STARTS, RestartPolicy
from engine.checks import check_request
from engine.config import EngineConfig
from engine.ipc import (
    Abort,
    EchoRequest,
    FromEngine,
    LoadProgress,
    Ready,
    StepResult,
    Submit,
    UseVocabulary,
    WatchSnapshots,
)
from engine.types import EngineLoad, ModelInfo, Request, Snapshot, Vocabulary
from engine.worker import Builder

log = logging.getLogger("carousel.client")

HEARTBEAT_POLL_SECONDS = 0.25  # between two checks of the heartbeat
STALL_SECONDS = 3.0  # without progress after which a server with work is reported as not ready
ECHO_AFTER_SECONDS = 2.0  # without a heartbeat after which an idle engine is sent an echo request
# minimum seconds without a message that a loading engine is given, regardless of the watchdog's time
MIN_LOADING_SECONDS = 300.0
EXIT_SECONDS = 5.0  # in which a stopped engine may exit by itself
CLOSED_EXIT_SECONDS = 1.0  # the same for an engine that has closed its channel
# seconds in which this process, if it was itself delayed, reads messages that the engine sent meanwhile
CATCH_UP_SECONDS = 0.2


class EngineState(Enum):
    """State of the engine as a whole."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # the engine died and its replacement is starting
    RETRYING = "retrying"  # several starts in a row failed; requests are refused until a later start succeeds
    FAILED = "failed"
    STOPPED = "stopped"


STARTING = (EngineState.LOADING, EngineState.RESTARTING, EngineState.RETRYING)


class EngineUnavailable(Exception):
    """The engine is not ready or has ended."""


class EngineClient:
    """One engine at a time, in its own process; with `build`, on a thread of this process (for tests)."""

    def __init__(
        self,
        config: EngineConfig,
        build: Builder | None = None,
        watchdog: float = math.inf,
        logs: tuple[str, str] = ("info", "text"),
        restart_interval: float | None = None,
    ) -> None:
        """watchdog: seconds without progress after which an engine is replaced. restart_interval: seconds between
        further starts after several in a row have failed; None: the client fails instead. logs: level and format of the
        engine process's log.
        """
        self.config = config
        self.phase = EngineState.LOADING
        self.loading = LoadProgress("start", 0, 1)
        self.failure = ""
        self.info: ModelInfo | None = None
        self.load: EngineLoad | None = None
        self.restarts = 0
        self._vocabulary: Vocabulary | None = None  # set for the first request with a constraint
        self._build = build
        self._logs = logs
        self._restart_interval = restart_interval
        self._in_flight = InFlight()
        self._watchers: set[Callable[[Snapshot, EngineLoad], None]] = set()
        self._changed = asyncio.Event()
        self._restart_policy = RestartPolicy()
        self._ready_at = math.inf  # of the current engine; infinity while it loads
        self._restart: asyncio.Task[None] | None = None
        self._watchdog = watchdog
        self._last_message_at = 0.0  # last sign of progress, or the time since which one is due
        self._beats = 0  # heartbeat count at `_last_message_at`
        self._is_echo_due = False  # an idle engine was sent an echo request
        self._looking: asyncio.Task[None] | None = None
        self._engine = EngineProcess(self._receive, self._on_lost, build, logs)

    # Engine lifecycle -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the engine and begin to load the model. Returns at once; `ready` waits."""
        try:
            await self._engine.start(self.config)
        except (OSError, RuntimeError) as error:  # no process or thread was available
            self._fail(f"the engine process cannot be started: {error}")
            return
        self._looking = asyncio.create_task(self._look())

    async def ready(self) -> ModelInfo:
        """Wait until requests are served. Raises `EngineUnavailable` with a one-line reason."""
        while self.phase in STARTING:
            await self._changed.wait()
        if self.info is None or self.phase is not EngineState.READY:
            raise EngineUnavailable(self.failure or "the engine is stopped")
        return self.info

    async def failed(self) -> str:
        """Wait until no further engine will be started. Returns the reason."""
        while self.phase is not EngineState.FAILED:
            await self._changed.wait()
        return self.failure

    async def stop(self) -> None:
        """Close the channel and wait for the process to end."""
        self._set_phase(EngineState.STOPPED)
        if tasks := [task for task in (self._restart, self._looking) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._engine.close(EXIT_SECONDS)

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """Return the engine's process, if it has one."""
        return self._engine.process

    # Requests -----------------------------------------------------------------------------------------------------

    @property
    def accepts_requests(self) -> bool:
        """Return whether there is an engine or its replacement is starting."""
        return self.phase in (EngineState.READY, EngineState.RESTARTING)

    @property
    def is_stalled(self) -> bool:
        """Return whether an engine with work has made no progress for `STALL_SECONDS`. It may still recover."""
        return (
            self.phase is EngineState.READY
            and self._is_heartbeat_due
            and time.monotonic() - self._last_message_at > STALL_SECONDS
        )

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Give the engine, and each later one, the model's tokens. Further calls do nothing."""
        if self._vocabulary is None:
            self._vocabulary = vocabulary
            self._engine.send(UseVocabulary(vocabulary))

    def check(self, request: Request) -> None:
        """Raise `RequestRefused` for a request that can never be served, and `EngineUnavailable` without an engine."""
        if self.info is None or not self.accepts_requests:
            raise EngineUnavailable(self.failure or "the engine is not ready")
        check_request(request, self.info)

    def submit(self, request: Request, sink: Sink) -> None:
        """Send a request that has passed `check`. `sink` is called with each of its events, in order, until every
        choice has ended.
        """
        if not self._in_flight:
            self._last_message_at = time.monotonic()
        ongoing = self._in_flight.add(request, sink)
        if self.phase is EngineState.READY and self._in_flight.takes_requests(0):
            self._engine.send(Submit(ongoing.resume_request(0)))
        else:
            ongoing.report_no_engine()

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Ask the engine to end a request or one choice. Its `EndEvent` still arrives at the sink."""
        ongoing = self._in_flight.get(request_id)
        if ongoing is None:
            return
        ongoing.abort(choice)
        if ongoing.member is not None:
            self._engine.send(Abort(request_id, choice))
        else:  # called later: a caller must not receive an event during its own call
            asyncio.get_running_loop().call_soon(self._in_flight.drop_aborted, request_id)

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._in_flight)

    def watch(self, watcher: Callable[[Snapshot, EngineLoad], None]) -> None:
        """Call `watcher` with each snapshot from now on."""
        if not self._watchers:
            self._engine.send(WatchSnapshots(True))
        self._watchers.add(watcher)

    def unwatch(self, watcher: Callable[[Snapshot, EngineLoad], None]) -> None:
        """Stop calling `watcher`; without watchers the engine makes no snapshots."""
        self._watchers.discard(watcher)
        if not self._watchers:
            self._engine.send(WatchSnapshots(False))

    # Internals ------------------------------------------------------------------------------------------------------

    def _set_phase(self, phase: EngineState) -> None:
        self.phase = phase
        self._changed.set()
        self._changed = asyncio.Event()

    def _receive(self, message: FromEngine) -> Iterator[None]:
        """Handle a message from the engine; yields after each event."""
        self._note_progress()
        match message:
            case StepResult(events, load, snapshot):
                self.load = load
                for event in events:
                    if self._in_flight.handle(event):
                        self._send_unsent()
                    yield
                if snapshot is not None:
                    for watcher in list(self._watchers):
                        watcher(snapshot, load)
            case LoadProgress():
                self.loading = message
                self._changed.set()
                self._changed = asyncio.Event()
            case Ready(info) if self.phase in STARTING:
                self.info = info
                self._ready_at = time.monotonic()
                if self.phase is not EngineState.LOADING:
                    log.warning("the engine is ready again; resumed requests: %d", len(self._in_flight))
                    if self._watchers:
                        self._engine.send(WatchSnapshots(True))
                self._set_phase(EngineState.READY)
                self._send_unsent()

    def _send_unsent(self) -> None:
        self._engine.send(*map(Submit, self._in_flight.requests_to_send()))

    def _on_lost(self, why: str) -> None:
        """Handle the loss of an engine. Starts another one, unless it was the first, whose failure is reported, or too
        many engines in a row have ended without progress.
        """
        if self.phase in (EngineState.FAILED, EngineState.STOPPED):
            return
        if self.phase is EngineState.LOADING:  # callers of `ready` report it
            self._fail(why)
            return
        self._record_engine_end()
        self._set_phase(EngineState.RESTARTING)
        self.load = None  # nothing runs without an engine
        self.loading = LoadProgress("start", 0, 1)
        if self._restart_policy.is_exhausted and self._restart_interval is not None:
            seconds = f"{self._restart_interval:g} s"
            why += f"; {MAX_FAILED_STARTS} or more engines in a row failed, so the next starts in {seconds}"
            log.error("%s", why)
            self.failure = why
            self._set_phase(EngineState.RETRYING)
            self._in_flight.fail(why, "engine_unavailable")
            self._restart = asyncio.create_task(self._restart_engine(self._restart_interval))
            return
        if self._restart_policy.is_exhausted:
            why += f"; {MAX_FAILED_STARTS} engines in a row failed, so no other one is started"
            log.error("%s", why)
            self._fail(why)
            return
        log.error("%s; another one is started; requests waiting for it: %d", why, len(self._in_flight))
        self._restart = asyncio.create_task(self._restart_engine(self._restart_policy.backoff_seconds))

    def _record_engine_end(self) -> None:
        has_progressed, was_at_work = self._in_flight.has_progressed(), self._in_flight.is_at_work()
        had_culprit, seconds = self._in_flight.lose_engine(), time.monotonic() - self._ready_at
        self._restart_policy.record_end(
            made_progress=has_progressed, had_work=was_at_work, had_culprit=had_culprit, seconds=seconds
        )
        self._ready_at = math.inf

    async def _restart_engine(self, pause: float) -> None:
        try:
            # wait until the old process has ended, so that its memory is free
            await self._engine.close(CLOSED_EXIT_SECONDS)
            if self._engine.exit_description:
                log.error("the process of that engine ended %s", self._engine.exit_description)
            await asyncio.sleep(pause)
            self._engine = EngineProcess(self._receive, self._on_lost, self._build, self._logs)
            self._note_progress()
            # keep the number of pages: an admitted request may need all of them
            await self._engine.start(replace(self.config, num_pages=self.info.num_pages) if self.info else self.config)
            if self._vocabulary is not None:
                self._engine.send(UseVocabulary(self._vocabulary))
            self.restarts += 1
        except Exception as error:  # no process, thread or descriptor was available; a retry may succeed
            self._on_lost(f"no engine could be started: {error}")

    def _note_progress(self) -> None:
        self._last_message_at, self._beats, self._is_echo_due = time.monotonic(), self._engine.heartbeat.count, False

    async def _look(self) -> None:
        """Check the heartbeat, send echo requests, and replace an engine that makes no progress."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(HEARTBEAT_POLL_SECONDS)
            if (
                time.monotonic() - began > HEARTBEAT_POLL_SECONDS + STALL_SECONDS / 2
            ):  # this process was delayed, and possibly the engine too
                self._last_message_at = time.monotonic()
            if self._engine.heartbeat.count != self._beats:
                self._note_progress()
            elif self.phase is EngineState.READY:
                self._send_echo_request()
            if self._is_silent:
                await asyncio.sleep(CATCH_UP_SECONDS)
                if self._engine.heartbeat.count == self._beats and self._is_silent:
                    silent = time.monotonic() - self._last_message_at
                    self._engine.abandon(f"the engine has made no progress for {silent:.0f} s")

    def _send_echo_request(self) -> None:
        """Send an echo request to an engine without a recent heartbeat.

        An echo through the worker's main loop detects a stopped process, a hanging loop and a blocked channel. A
        generation request would detect nothing more on a CPU, and would occupy the device of an otherwise idle machine;
        a hanging device is detected at the first step.
        """
        if self._is_echo_due or time.monotonic() - self._last_message_at < ECHO_AFTER_SECONDS:
            return
        if not self._in_flight:
            self._last_message_at = time.monotonic()
        self._is_echo_due = True
        self._engine.send(EchoRequest())

    @property
    def _is_heartbeat_due(self) -> bool:
        return len(self._in_flight) > 0 or self._is_echo_due

    @property
    def _is_silent(self) -> bool:
        silent = time.monotonic() - self._last_message_at
        if self.phase in (EngineState.RESTARTING, EngineState.RETRYING):
            return silent > max(self._watchdog, MIN_LOADING_SECONDS)
        return self.phase is EngineState.READY and self._is_heartbeat_due and silent > self._watchdog

    def _fail(self, why: str) -> None:
        """Fail all waiting requests. The first reason counts, and being stopped is one."""
        self.failure = why
        self._set_phase(EngineState.FAILED)
        self._in_flight.fail(why, "engine_unavailable")
        self._restart = asyncio.create_task(self._engine.close(CLOSED_EXIT_SECONDS))
