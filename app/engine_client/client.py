"""EngineClient: the API's side of the engines. Sends requests to members, and calls their sinks with events. If an
engine dies, another one resumes its requests from the output so far.

Messages are handled by plain function calls, so that a token costs no task switch. Has no knowledge of HTTP or text.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import count

from app.engine_client.adoption import Adoptions
from app.engine_client.channel_clock import ReceivedEvent
from app.engine_client.engine_process import EngineProcess
from app.engine_client.in_flight import InFlight, OnEnd
from app.engine_client.in_flight_request import Sink
from app.engine_client.member import STARTING, EngineMember, EngineState
from app.engine_client.member_counts import ReadyMember
from app.engine_client.membership import EngineSource, Membership
from app.engine_client.prefix_index import PrefixIndex
from app.engine_client.served_model import ServedModel
from app.engine_client.service_state import service_state
from app.engine_client.snapshots import Snapshots
from app.engine_client.transport import TransportMaker
from app.engine_client.use_exchange import UseExchange
from engine.checks import check_request
from engine.config import EngineConfig
from engine.ipc import Adopted, Change, Keep, LoadProgress, NotFound, StepResult
from engine.placement import WHOLE_MACHINE, Share
from engine.prompt_pace import PromptPace
from engine.types import ModelInfo, Request, ServiceClass, Vocabulary
from engine.worker import Builder

BALANCE_SECONDS = 0.25  # between looks for waiting requests that another engine has a free slot for
MODEL_REPLACED = "The model was replaced while this answer was being generated, so that its text cannot continue."
# Seconds between connections to an engine elsewhere after several failed; these do not end this process.
REMOTE_RETRY_SECONDS = 10.0

log = logging.getLogger("carousel.client")


class EngineUnavailable(Exception):
    """The engine is not ready or has ended."""


class EngineClient:
    """Engines in processes of their own; with `build`, on threads of this process (for tests); or engines elsewhere."""

    def __init__(
        self,
        config: EngineConfig,
        build: Builder | None = None,
        watchdog: float = math.inf,
        logs: tuple[str, str] = ("info", "text"),
        restart_interval: float | None = None,
        shares: Sequence[Share] = (WHOLE_MACHINE,),
        remote: EngineSource | None = None,
    ) -> None:
        """watchdog: seconds without progress after which an engine is replaced. restart_interval: seconds between
        further starts after several in a row have failed; None: the client fails instead. logs: level and format of the
        engine processes' logs. shares: of the machine, one for each engine. remote: source of engines that other
        processes have started; there are no others then.
        """
        self._changed = asyncio.Event()
        self._is_stopped = False
        self._balance_at = 0.0  # next look for requests that can move to a free engine
        self._starting: asyncio.Task[None] | None = None  # of the engines after the first
        self._served = ServedModel()
        self._config = config
        self._vocabulary: Vocabulary | None = None  # since the first request with a constraint
        self._members: dict[int, EngineMember] = {}
        self.snapshots = Snapshots(self._members)
        self.uses = UseExchange(self._members)
        self._numbers = count()  # of members, each used once
        self.is_single = remote is None and len(shares) == 1  # there is always one engine
        self._in_flight = InFlight(has_several=not self.is_single)
        self.adoptions = Adoptions(self._members, self._in_flight, is_possible=remote is not None)
        self._closing: set[asyncio.Task[None]] = set()  # ends of members that are gone
        self._following: asyncio.Task[None] | None = None
        self._membership = Membership(remote, self) if remote is not None else None
        if remote is not None and restart_interval is None:
            restart_interval = REMOTE_RETRY_SECONDS
        self._create_member = partial(
            EngineMember,
            in_flight=self._in_flight,
            owner=self,
            watchdog=watchdog,
            restart_interval=restart_interval,
        )
        for index, share in enumerate(shares if remote is None else ()):
            make_engine = partial(EngineProcess, build=build, logs=logs, cpus=share.cpus)
            self._make_member("" if self.is_single else f"engine {index}", share.apply_to(config), make_engine)

    def _make_member(self, name: str, config: EngineConfig, make_engine: TransportMaker) -> EngineMember:
        index = next(self._numbers)
        member = self._members[index] = self._create_member(index, config, make_engine, name=name)
        return member

    @property
    def members(self) -> tuple[EngineMember, ...]:
        """Return the members that there are now, by number."""
        return tuple(self._members.values())

    # Engine lifecycle -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the first engine and begin to load the model. Returns at once; `ready` waits.

        The other engines start when it is ready: with the number of pages that it has, so that they accept the same
        requests, and with compiled kernels. Requests are served from then on. Engines elsewhere are connected at once.
        """
        if self._membership is None:
            await self.members[0].start()
        else:
            self._following = asyncio.create_task(self._membership.follow())

    async def ready(self) -> ModelInfo:
        """Wait until requests are served. Raises `EngineUnavailable` with a one-line reason."""
        while self.state in STARTING:
            await self._changed.wait()
        if (model := self.model) is None or self.state is not EngineState.READY:
            raise EngineUnavailable(self.failure or "the engine is stopped")
        return model

    async def failed(self) -> str:
        """Wait until no further engine will be started. Returns the reason."""
        while self.state is not EngineState.FAILED:
            await self._changed.wait()
        return self.failure

    async def stop(self) -> None:
        """Close the channels and wait for the processes to end."""
        if tasks := [task for task in (self._starting, self._following) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._is_stopped = True
        await asyncio.gather(*(member.stop() for member in self.members), *self._closing)
        self.on_change()

    @property
    def state(self) -> EngineState:
        """Return the state of the service as a whole: ready if any engine is."""
        if self._is_stopped:
            return EngineState.STOPPED
        return service_state((member.phase for member in self.members), has_served=self.model is not None)

    @property
    def failure(self) -> str:
        """Return why no engine is expected soon; empty if that has not happened."""
        return next((member.failure for member in self.members if member.failure), "")

    @property
    def model(self) -> ModelInfo | None:
        """Return the model that all engines serve; None before any has loaded it."""
        return self._served.info

    @property
    def slots(self) -> int:
        """Return the batch slots of all engines; 0 before any has loaded the model."""
        return sum(member.info.max_num_seqs for member in self.members if member.info is not None)

    @property
    def loading(self) -> LoadProgress:
        """Return the progress of the first engine that starts; that of the first one if none does."""
        starting = next((each for each in self.members if each.phase in STARTING), next(iter(self.members), None))
        return LoadProgress("connect", 0, 1) if starting is None else starting.loading

    # Requests -----------------------------------------------------------------------------------------------------

    @property
    def accepts_requests(self) -> bool:
        """Return whether there is an engine or its replacement is starting."""
        if not self._members:  # others are expected
            return self.model is not None and not self._is_stopped
        return any(member.accepts_requests for member in self.members)

    @property
    def is_stalled(self) -> bool:
        """Return whether every ready engine has work and has made no progress for a few seconds. It may recover."""
        ready = [member for member in self.members if member.is_ready]
        return bool(ready) and all(member.is_stalled for member in ready)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Give each engine, and each later one, the model's tokens. Further calls do nothing."""
        if self._vocabulary is None:
            self._vocabulary = vocabulary
            for member in self.members:
                member.use_vocabulary(vocabulary)

    def check(self, request: Request) -> None:
        """Raise `RequestRefused` for a request that can never be served, and `EngineUnavailable` without an engine."""
        if (model := self.model) is None or not self.accepts_requests:
            raise EngineUnavailable(self.failure or "the engine is not ready")
        check_request(request, model)

    def submit(self, request: Request, sink: Sink) -> None:
        """Send a request that has passed `check`. `sink` is called with its events in order, until each choice ends."""
        ongoing = self._in_flight.add(request, sink)
        self._send_waiting()
        if ongoing.member is None and not ongoing.position:
            ongoing.report_no_engine()

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """Ask the engine to end a request or one choice. Its `EndEvent` still arrives at the sink."""
        ongoing = self._in_flight.get(request_id)
        if ongoing is None:
            return
        ongoing.abort(choice)
        if ongoing.member is not None:
            self._members[ongoing.member].abort(request_id, choice)
        else:  # called later: a caller must not receive an event during its own call
            asyncio.get_running_loop().call_soon(self._drop_aborted, request_id)

    def change(self, request_id: str, *, is_paused: bool, service_class: ServiceClass) -> None:
        """Pause or resume a request, and move it to a class. A request that has ended is not changed."""
        member = self._in_flight.change(request_id, is_paused=is_paused, service_class=service_class)
        if member is None:
            self._send_waiting()
        else:
            self._members[member].engine.send(Change(request_id, is_paused, service_class))

    def keep(self, request_id: str, choice: int) -> None:
        """Keep the pages of a choice, whose answer asks for a tool, until the tool's result comes back."""
        ongoing = self._in_flight.get(request_id)
        if ongoing is not None and ongoing.member is not None:
            self._members[ongoing.member].engine.send(Keep(request_id, choice))

    def follow_ends(self, on_end: OnEnd) -> None:
        """Call `on_end` with each request that an engine has ended, after its last event, and its last output."""
        self._in_flight.on_end = on_end

    @property
    def prefixes(self) -> PrefixIndex:
        """Return what the prefix caches of the members have."""
        return self._in_flight.prefixes

    def prompt_pace(self, index: int | None = None) -> PromptPace | None:
        """Return the pace of a member; of any that is ready if `index` is None. None if it is not known."""
        member = next((each for each in self.members if each.is_ready and index in (None, each.index)), None)
        return None if member is None or member.load is None else member.load.prompt_pace

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._in_flight)

    def num_waiting(self, service_class: ServiceClass) -> int:
        """Return the number of requests of a class that no engine has."""
        return self._in_flight.waiting.count(service_class)

    def slot_waits(self) -> Iterator[tuple[Request, float]]:
        """Yield the requests that wait for a slot, each with the moment since which it waits."""
        return self._in_flight.slot_waits()

    # Callbacks of members -------------------------------------------------------------------------------------------

    def on_step(self, index: int, events: Iterable[ReceivedEvent], result: StepResult) -> Iterator[None]:
        """Pass on the events of a step; yields after each."""
        self.uses.on_step(index, result)
        for event in events:
            if self._in_flight.handle(event):
                self._send_waiting()
            yield
        if self._in_flight.waiting.late and (member := self._members.get(index)) is not None and member.is_ready:
            # only this member can have room for them: those with room got theirs before
            self._send_waiting_to([member.as_ready])
        if len(self._members) > 1:
            self._balance()
        self.snapshots.publish(index, result)

    def on_adoption(self, index: int, message: Adopted | NotFound) -> None:
        self.adoptions.handle(index, message)

    def difference(self, index: int, info: ModelInfo) -> str:
        """Return why a member's new engine cannot continue the texts of the others; empty if it can, or there are none.

        When all engines of a model are gone, those of another one are used, and texts of the former end with an error.
        """
        if self._membership is None and not any(each.info for each in self.members if each.index != index):
            self._served.info = info
        elif difference := self._served.difference(info):
            if self.expected_fingerprint or self._membership is None:
                return difference
            log.warning("%s has another model than before: %s", self._members[index].name, difference)
            self._in_flight.fail_started(MODEL_REPLACED, "model_replaced")
        self._served.info = info
        return ""

    def on_ready(self) -> None:
        """Send requests that wait for an engine, and those of engines that are draining; start the other engines after
        the first.
        """
        if self._membership is not None:
            self._membership.expect()
        elif self._starting is None:
            self._starting = asyncio.create_task(self._start_others())
        self.on_draining()
        self._send_waiting()

    def on_draining(self) -> None:
        """Move the requests of engines that are draining to other members; without one they stay where they are."""
        if any(member.is_ready for member in self.members):
            for member in self.members:
                if member.is_draining:
                    member.leave()

    def on_lost(self) -> None:
        """Send requests of a lost engine to other members; without one, they wait for the next engine."""
        self._send_waiting()

    def on_gave_up(self, why: str) -> None:
        """Do as `on_lost`; without any engine, end all requests, and start no other if the first could not load."""
        if self.model is None and self._membership is None:
            for member in self.members:
                if member.phase is EngineState.LOADING:
                    member.fail(why)
        if self.accepts_requests:
            self._send_waiting()
        else:
            self._in_flight.fail(why, "engine_unavailable")

    def on_change(self) -> None:
        """Wake callers that wait for a state."""
        if any(member.is_ready for member in self.members):
            self._served.note_engine()
        self.adoptions.on_change()
        self.uses.on_change()
        self._changed.set()
        self._changed = asyncio.Event()

    # Engines elsewhere ----------------------------------------------------------------------------------------------

    @property
    def names(self) -> set[str]:
        """Return the names of all members."""
        return {member.name for member in self.members}

    async def add_member(self, name: str, make_engine: TransportMaker) -> None:
        """Add a member and start to connect to its engine."""
        member = self._make_member(name, self._config, make_engine)
        if self._vocabulary is not None:
            member.use_vocabulary(self._vocabulary)
        member.watch(self.snapshots.are_watched)
        await member.start()
        self.on_change()

    def retire_member(self, name: str) -> bool:
        """Remove a member if it has no engine any more; its requests wait for another one. Returns whether it did."""
        member = next(member for member in self.members if member.name == name)
        if member.is_ready or (member.is_draining and self._in_flight.has_requests(member.index)):
            return False
        del self._members[member.index]
        self._in_flight.lose_engine(member.index, has_died=False)
        task = asyncio.create_task(member.stop())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self.on_change()
        self._send_waiting()
        return True

    @property
    def expected_fingerprint(self) -> str:
        """Return the fingerprint that further engines must have; empty: any."""
        is_served = any(member.is_ready for member in self.members)
        return self._served.expected_fingerprint(is_served=is_served, has_started=self._in_flight.has_started)

    async def _start_others(self) -> None:
        num_pages = self.members[0].info.num_pages if self.members[0].info is not None else None
        for member in self.members[1:]:
            await member.start(num_pages)

    def _send_waiting(self) -> None:
        self._send_waiting_to(self._ready_members())

    def _send_waiting_to(self, ready: Sequence[ReadyMember]) -> None:
        for index, requests in self._in_flight.requests_to_send(ready).items():
            self._members[index].send(requests)

    def _ready_members(self) -> list[ReadyMember]:
        """Return the members that may be given requests: those that make progress, or all if none does."""
        ready = [member for member in self.members if member.is_ready]
        working = [member for member in ready if not member.is_stalled] or ready
        return [member.as_ready for member in working]

    def _balance(self) -> None:
        """Ask for requests back that wait in an engine while another one has a free slot, from time to time."""
        if (now := time.monotonic()) >= self._balance_at:
            self._balance_at = now + BALANCE_SECONDS
            for index, request_id in self._in_flight.requests_to_recall(self._ready_members()):
                self._members[index].abort(request_id, moves=True)

    def _drop_aborted(self, request_id: str) -> None:
        self._in_flight.drop_aborted(request_id)
        self._send_waiting()
