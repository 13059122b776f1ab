"""EngineMember: one engine of the service, from its first start to its end, with restarts, watchdog and channel.

Reports events through its owner's callbacks, and knows no other member. Has no knowledge of HTTP or text.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Protocol

from msgspec.structs import replace

from app.engine_client.channel_clock import ChannelClock, ReceivedEvent
from app.engine_client.in_flight import InFlight
from app.engine_client.member_counts import ReadyMember
from app.engine_client.restart_policy import MAX_FAILED_STARTS, RestartPolicy
from app.engine_client.transport import Transport, TransportMaker
from engine.config import EngineConfig
from engine.ipc import (
    Abort,
    Adopted,
    Draining,
    EchoRequest,
    FromEngine,
    LoadProgress,
    NotFound,
    Ready,
    StepResult,
    Submit,
    UseVocabulary,
    WatchPrefixes,
    WatchSnapshots,
)
from engine.load import EngineLoad
from engine.types import ModelInfo, Request, Vocabulary

log = logging.getLogger("carousel.client")

HEARTBEAT_POLL_SECONDS = 0.25  # between two checks of the heartbeat
STALL_SECONDS = 3.0  # without progress after which a server with work is reported as not ready
ECHO_AFTER_SECONDS = 2.0  # without a heartbeat after which an idle engine is sent an echo request
MIN_LOADING_SECONDS = 300.0  # minimum without a message for a loading engine, regardless of the watchdog's time
EXIT_SECONDS = 5.0  # in which a stopped engine may exit by itself
CLOSED_EXIT_SECONDS = 1.0  # the same for an engine that has closed its channel
# seconds in which this process, if it was itself delayed, reads messages that the engine sent meanwhile
CATCH_UP_SECONDS = 0.2


class EngineState(Enum):
    """State of an engine, or of the service as a whole."""

    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"  # the engine died and its replacement is starting
    RETRYING = "retrying"  # several starts in a row failed; requests are refused until a later start succeeds
    FAILED = "failed"
    STOPPED = "stopped"


STARTING = (EngineState.LOADING, EngineState.RESTARTING, EngineState.RETRYING)


class MemberOwner(Protocol):
    """Receiver of a member's events."""

    def on_step(self, index: int, events: Iterable[ReceivedEvent], result: StepResult) -> Iterator[None]:
        """Handle the results of a step, with moments on this process's clock; yields after each event."""

    def difference(self, index: int, info: ModelInfo) -> str:
        """Return why a member's new engine cannot serve the same requests as the others; empty if it can."""

    def on_adoption(self, index: int, message: Adopted | NotFound) -> None:
        """Handle an engine's answer to `Adopt`."""

    def on_ready(self) -> None:
        """Handle that an engine serves requests from now on."""

    def on_draining(self) -> None:
        """Handle that an engine takes no new requests and ends with those that it has."""

    def on_lost(self) -> None:
        """Handle the loss of an engine that is replaced; its requests wait."""

    def on_gave_up(self, why: str) -> None:
        """Handle that the member has no engine and expects none soon."""

    def on_change(self) -> None:
        """Handle a change of the state or of the loading progress."""


class EngineMember:
    """One engine at a time, each of which replaces the previous one."""

    def __init__(
        self,
        index: int,
        config: EngineConfig,
        make_engine: TransportMaker,
        in_flight: InFlight,
        owner: MemberOwner,
        *,
        watchdog: float = math.inf,
        restart_interval: float | None = None,
        name: str = "",
    ) -> None:
        """index: of the member in `in_flight`. name: for messages, of one of several engines; empty for the only one.
        For other parameters see `EngineClient`.
        """
        self.index = index
        self.phase = EngineState.LOADING
        self.loading = LoadProgress("start", 0, 1)
        self.failure = ""
        self.info: ModelInfo | None = None
        self.load: EngineLoad | None = None
        self.connections = 1  # of API processes that the engine serves
        self.restarts = 0
        self.is_draining = False  # the current engine ends with the requests that it has
        self._config = config
        self.name = name or "the engine"
        self._prefix = f"{name}: " if name else ""  # of messages that name no engine
        self._make_engine = make_engine
        self._in_flight = in_flight
        self._owner = owner
        self._vocabulary: Vocabulary | None = None
        self._is_watched = False
        self._restart_interval = restart_interval
        self._restart_policy = RestartPolicy()
        self._ready_at = math.inf  # of the current engine; infinity while it loads
        self._restart: asyncio.Task[None] | None = None
        self._watchdog = watchdog
        self._last_message_at = 0.0  # last sign of progress, or the time since which one is due
        self._beats = 0  # heartbeat count at `_last_message_at`
        self._is_echo_due = False  # an idle engine was sent an echo request
        self._looking: asyncio.Task[None] | None = None
        self._engine = make_engine(self._receive, self._on_lost)
        self._clock = ChannelClock(is_shared=self._engine.shares_clock)

    # Engine lifecycle -----------------------------------------------------------------------------------------------

    async def start(self, num_pages: int | None = None) -> None:
        """Start the engine and begin to load the model. Returns at once. num_pages: of its KV cache; None: as
        configured.
        """
        if num_pages is not None:
            self._config = replace(self._config, num_pages=num_pages)
        try:
            await self._engine.start(self._config)
            if self._vocabulary is not None:
                self._engine.send(UseVocabulary(self._vocabulary))
        except (OSError, RuntimeError) as error:  # no process or thread was available
            self.fail(f"the engine process cannot be started: {error}")
            return
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Close the channel and wait for the process to end."""
        self._set_phase(EngineState.STOPPED)
        if tasks := [task for task in (self._restart, self._looking) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._engine.close(EXIT_SECONDS)

    @property
    def is_ready(self) -> bool:
        """Return whether requests can be sent."""
        return self.phase is EngineState.READY

    @property
    def accepts_requests(self) -> bool:
        """Return whether there is an engine or its replacement is starting."""
        return self.phase in (EngineState.READY, EngineState.RESTARTING)

    @property
    def is_stalled(self) -> bool:
        """Return whether an engine with work has made no progress for `STALL_SECONDS`. It may still recover."""
        return time.monotonic() - self._last_message_at > STALL_SECONDS and self.is_ready and self._is_heartbeat_due

    @property
    def as_ready(self) -> ReadyMember:
        """Return what the router knows of a member that is ready."""
        assert self.info is not None
        return ReadyMember(self.index, self.info.max_num_seqs, self.load, self.connections)

    @property
    def engine(self) -> Transport:
        """Return the channel to the current engine."""
        return self._engine

    # Messages -------------------------------------------------------------------------------------------------------

    def send(self, requests: Sequence[Request]) -> None:
        """Send requests that `in_flight` has given to this member."""
        if self._in_flight.num_choices(self.index) == sum(len(list(request.choices)) for request in requests):
            self._last_message_at = time.monotonic()  # the engine was idle: progress is due from now on
        self._engine.send(*(Submit(self._clock.to_engine(request)) for request in requests))

    def leave(self) -> None:
        """Give up an engine that is draining; its requests wait for another one."""
        self._engine.abandon(f"{self.name} is draining")

    def abort(self, request_id: str, choice: int | None = None, *, moves: bool = False) -> None:
        """Ask the engine to end a request or one choice. moves: it goes on in another engine."""
        self._engine.send(Abort(request_id, choice, moves))

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Give the engine, and each later one, the model's tokens, when it is ready."""
        self._vocabulary = vocabulary
        if self.is_ready:
            self._engine.send(UseVocabulary(vocabulary))

    def watch(self, is_watched: bool) -> None:
        """Let the engine, and each later one, make snapshots or not, when it is ready."""
        self._is_watched = is_watched
        if self.is_ready:
            self._engine.send(WatchSnapshots(is_watched))

    # Internals ------------------------------------------------------------------------------------------------------

    def _set_phase(self, phase: EngineState) -> None:
        self.phase = phase
        self._owner.on_change()

    def _receive(self, message: FromEngine) -> Iterator[None]:
        """Handle a message from the engine. Returns an iterator that stops after each event of a step."""
        self._note_progress()
        match message:
            case StepResult():
                self.load, self.connections = message.load, message.connections
                self._in_flight.note_trial(self.index, message.trial)
                if message.prefixes is not None and self.info is not None:
                    self._in_flight.prefixes.update(self.index, message.prefixes, self.info.page_size)
                self._clock.observe(message.clock, self._last_message_at)
                return self._owner.on_step(self.index, self._clock.from_engine(message.events), message)
            case Adopted() | NotFound():
                self._owner.on_adoption(self.index, message)
            case LoadProgress():
                self.loading = message
                self._owner.on_change()
            case Draining():
                self.is_draining = True
                self._set_phase(EngineState.RESTARTING)
                self._owner.on_draining()
            case Ready(info, clock) if self.phase in STARTING:
                self._clock.observe(clock, self._last_message_at)
                if difference := self._owner.difference(self.index, info):
                    if self._engine.reject(difference):
                        return iter(())
                    self.fail(f"{self.name} is not used: {difference}")
                    log.error("%s", self.failure)
                else:
                    self._on_ready(info)
        return iter(())

    def _on_ready(self, info: ModelInfo) -> None:
        self.info = info
        self._ready_at = time.monotonic()
        if self.phase is not EngineState.LOADING:
            log.warning("%s is ready again; requests in flight: %d", self.name, len(self._in_flight))
        elif self._prefix:
            log.info("%s is ready", self.name)
        if self._vocabulary is not None:
            self._engine.send(UseVocabulary(self._vocabulary))
        if self._is_watched:
            self._engine.send(WatchSnapshots(True))
        self._engine.send(WatchPrefixes())
        self._set_phase(EngineState.READY)
        self._owner.on_ready()

    def _on_lost(self, why: str) -> None:
        """Handle the loss of an engine. Starts another one, unless it was the first, whose failure is reported, or too
        many engines in a row have ended without progress.
        """
        if self.phase in (EngineState.FAILED, EngineState.STOPPED):
            return
        if self.phase is EngineState.LOADING:  # callers of `ready` report it
            self.fail(self._prefix + why)
            if self._prefix:
                log.error("%s", self.failure)
            return
        why = self._prefix + why
        self._record_engine_end()
        self._set_phase(EngineState.RESTARTING)
        self.load = None  # nothing runs without an engine
        self.loading = LoadProgress("start", 0, 1)
        if not self._restart_policy.is_exhausted:
            level = logging.INFO if self.is_draining else logging.ERROR
            log.log(level, "%s; %s; requests in flight: %d", why, self._engine.replacement, len(self._in_flight))
            self._begin_restart(self._restart_policy.backoff_seconds)
            self._owner.on_lost()
        elif self._restart_interval is None:
            why += f"; {MAX_FAILED_STARTS} engines in a row failed, so no other one is started"
            log.error("%s", why)
            self.fail(why)
        else:
            seconds = f"{self._restart_interval:g} s"
            why += f"; {MAX_FAILED_STARTS} or more engines in a row failed, so the next starts in {seconds}"
            log.error("%s", why)
            self._give_up(EngineState.RETRYING, why)
            self._begin_restart(self._restart_interval)

    def _record_engine_end(self) -> None:
        index, in_flight = self.index, self._in_flight
        has_progressed, was_at_work = in_flight.has_progressed(index), in_flight.is_at_work(index)
        had_culprit = in_flight.lose_engine(index, has_died=not self.is_draining)
        seconds = time.monotonic() - self._ready_at
        self._restart_policy.record_end(
            made_progress=has_progressed or self.is_draining,
            had_work=was_at_work,
            had_culprit=had_culprit,
            seconds=seconds,
        )
        self._ready_at = math.inf

    def _begin_restart(self, pause: float) -> None:
        self._restart = asyncio.create_task(self._restart_engine(pause))

    async def _restart_engine(self, pause: float) -> None:
        try:
            # wait until the old process has ended, so that its memory is free
            await self._engine.close(CLOSED_EXIT_SECONDS)
            if self._engine.exit_description:
                log.error("the process of that engine ended %s", self._engine.exit_description)
            await asyncio.sleep(pause)
            self._engine = self._make_engine(self._receive, self._on_lost)
            self._clock = ChannelClock(is_shared=self._engine.shares_clock)
            self.is_draining = False
            self._note_progress()
            # keep the number of pages: an admitted request may need all of them
            config = replace(self._config, num_pages=self.info.num_pages) if self.info else self._config
            await self._engine.start(config)
            self.restarts += 1
        except Exception as error:  # no process, thread or descriptor was available; a retry may succeed
            self._on_lost(f"no engine could be started: {error}")

    def _note_progress(self) -> None:
        self._last_message_at, self._beats, self._is_echo_due = time.monotonic(), self._engine.heartbeat_count, False

    async def _look(self) -> None:
        """Check the heartbeat, send echo requests, and replace an engine that makes no progress."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(HEARTBEAT_POLL_SECONDS)
            if (
                time.monotonic() - began > HEARTBEAT_POLL_SECONDS + STALL_SECONDS / 2
            ):  # this process was delayed, and possibly the engine too
                self._last_message_at = time.monotonic()
            if self._engine.heartbeat_count != self._beats:
                self._note_progress()
            elif self.is_ready:
                self._send_echo_request()
            if self._is_silent:
                await asyncio.sleep(CATCH_UP_SECONDS)
                if self._engine.heartbeat_count == self._beats and self._is_silent:
                    silent = time.monotonic() - self._last_message_at
                    self._engine.abandon(f"{self.name} has made no progress for {silent:.0f} s")

    def _send_echo_request(self) -> None:
        """Send an echo request to an engine without a recent heartbeat.

        An echo through the worker's main loop detects a stopped process, a hanging loop and a blocked channel. A
        generation request would detect nothing more on a CPU, and would occupy the device of an otherwise idle machine;
        a hanging device is detected at the first step.
        """
        if self._is_echo_due or time.monotonic() - self._last_message_at < ECHO_AFTER_SECONDS:
            return
        if not self._in_flight.has_requests(self.index):
            self._last_message_at = time.monotonic()  # progress is due from now on
        self._is_echo_due = True
        self._engine.send(EchoRequest())

    @property
    def _is_heartbeat_due(self) -> bool:
        return self._is_echo_due or self._in_flight.has_requests(self.index)

    @property
    def _is_silent(self) -> bool:
        silent = time.monotonic() - self._last_message_at
        if self.phase in (EngineState.RESTARTING, EngineState.RETRYING):
            return silent > max(self._watchdog, MIN_LOADING_SECONDS)
        return self.is_ready and self._is_heartbeat_due and silent > self._watchdog

    def _give_up(self, phase: EngineState, why: str) -> None:
        self.failure = why
        self._set_phase(phase)
        self._owner.on_gave_up(why)

    def fail(self, why: str) -> None:
        """Start no further engine. The first reason counts, and being stopped is one."""
        self._give_up(EngineState.FAILED, why)
        self._restart = asyncio.create_task(self._engine.close(CLOSED_EXIT_SECONDS))
