"""InFlightRequest: a request that has not ended, with its output so far, so that another engine can resume it.
Independent of processes and of other requests.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import Counter
from collections.abc import Callable, Set

from msgspec.structs import replace

from app.streams.status import EngineMoveEvent, MoveReason
from engine.progress import has_progressed
from engine.request_logging import log_request
from engine.sent_events import SentEvents, outputs
from engine.types import (
    EndEvent,
    Event,
    FinishReason,
    Phase,
    PromptEvent,
    Request,
    ServiceClass,
    StatusEvent,
    TokenEvent,
    WaitReason,
)

log = logging.getLogger("carousel.in_flight")

NOT_FOR_A_SLOT = (WaitReason.GRAMMAR, WaitReason.RESTART, WaitReason.CLIENT)  # no further engine shortens these waits

Sink = Callable[[Event], None]

LOSS_TEXTS = {MoveReason.DIED: "died", MoveReason.DRAINED: "is drained"}
SUSPECT_DEATHS = 2  # deaths of engines that were computing the request, without progress since


class InFlightRequest:
    """A request, the output of its choices, and its state in the engine that has it."""

    __slots__ = (
        "_aborted",
        "_clock",
        "_has_reported",
        "_is_recalled",
        "_move",
        "_order",
        "_returned",
        "_running",
        "_wait_cause",
        "_waiting_since",
        "deaths",
        "member",
        "output",
        "position",
        "progress",
        "request",
        "serial",
        "sink",
        "unreported",
    )

    def __init__(
        self, request: Request, sink: Sink, serial: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """serial: number in order of arrival."""
        self._clock = clock
        self.request = request
        self.serial = serial
        self.sink = sink
        self._order = None
        if request.note and (request.n > 1 or request.sent is not None):
            self.sink = self._order = _OrderedSink(request, sink)
        # token ids of choices that have not ended
        self.output = {choice: array("I", request.output_so_far.get(choice, ())) for choice in request.choices}
        self.member: int | None = None  # that has it; None: it waits
        self.position = 0  # in the queue for a member, as reported; 0: none was reported
        self.unreported = 0  # choices that were sent and of which no event has arrived
        self.progress = 0  # tokens since it was sent
        # Of engines that were computing it, since its last progress. One that is adopted while on trial is a suspect.
        self.deaths = SUSPECT_DEATHS if request.is_trial else 0
        self._aborted: set[int] = set()  # choices
        self._has_reported = False  # an event has arrived since it was sent
        self._move: EngineMoveEvent | None = None  # from the engine that had it, until another one gets it
        self._is_recalled = False  # was asked back from its engine
        self._returned: set[int] = set()  # choices that the engine has given back since then
        self._running: set[int] = set()  # choices that have a slot, according to their last event
        self._waiting_since: float | None = None  # since when all its choices wait, according to their events
        self._wait_cause: WaitReason | None = None  # as last reported

    @property
    def waits_for_slot_since(self) -> float | None:
        """Return the moment since which it waits for a slot; None if it runs, or waits for something else."""
        return None if self._wait_cause in NOT_FOR_A_SLOT else self._waiting_since

    @property
    def may_be_computing(self) -> bool:
        """Return whether its engine may be computing it; true unless it is known to wait."""
        return self.member is not None and (bool(self._running) or not self._has_reported)

    @property
    def has_progressed(self) -> bool:
        """Return whether it made enough progress since it was sent that its earlier state did not crash the engine."""
        return has_progressed(self.progress, len(self.output))

    @property
    def is_suspect(self) -> bool:
        """Return whether an engine computes it alone until it has made progress."""
        return self.deaths >= SUSPECT_DEATHS

    def resume_request(self, member: int) -> Request:
        """Mark the request as sent to a member and return it with its output so far, for that engine to resume."""
        self.member, self._has_reported, self.progress = member, False, 0
        self.position, self.unreported = 0, 0
        self._is_recalled = False
        self._returned.clear()
        self._running.clear()
        if self._move is not None:
            self._deliver_to_all(replace(self._move, next_engine=member))
            self._move = None
        output: dict[int, tuple[int, ...]] = {}
        if len(self.output) < self.request.n or any(self.output.values()):
            output = {choice: tuple(tokens) for choice, tokens in self.output.items()}
        sent = None if self._order is None else self._order.sent.freeze()
        if not output and self._waiting_since is None and self.request.is_trial == self.is_suspect:
            return self.request
        return replace(
            self.request, output_so_far=output, waiting_since=self._waiting_since, is_trial=self.is_suspect, sent=sent
        )

    @property
    def num_choices(self) -> int:
        """Return the number of choices that its engine has, or that wait for one."""
        return len(self.output) - len(self._returned)

    def update(self, event: Event) -> bool:
        """Update the state from an event of a choice that has not ended. Returns whether it is for the sink: the end of
        a choice that was asked back is not.
        """
        choice = event.choice
        if self._is_recalled and choice not in self._aborted:
            if isinstance(event, EndEvent) and event.finish is FinishReason.ABORT:
                self._returned.add(choice)
                return False
            if isinstance(event, StatusEvent) and event.phase is Phase.ENDED:
                return False
        if isinstance(event, TokenEvent):
            self.output[choice].append(event.token_id)
            self.progress += 1
            if event.finish is not None:
                del self.output[choice]
            if self.deaths and self.has_progressed:
                self.deaths = 0
        elif isinstance(event, EndEvent):
            del self.output[choice]
        elif isinstance(event, PromptEvent):
            self._has_reported = True
        elif event.state == "running":
            self._has_reported = True
            self._running.add(choice)
            self._waiting_since = None
        else:
            self._has_reported = True
            self._running.discard(choice)
            self._wait_cause = event.cause
            if event.cause is WaitReason.CLIENT:
                self._waiting_since = None
            elif self._waiting_since is None and not self._running:
                self._waiting_since = event.monotonic_time
        return True

    def can_move_at(self, since: float) -> bool:
        """Return whether all its choices have waited in its engine since then, without being suspected or aborted."""
        return (
            self._has_reported
            and not self._running
            and self._waiting_since is not None
            and self._waiting_since <= since
            and not (self.deaths or self._aborted or self._is_recalled or self.request.is_paused)
        )

    def change(self, *, is_paused: bool, service_class: ServiceClass) -> None:
        """Pause or resume the request, and move it to a class. Reports that itself if no engine has it."""
        was_paused = self.request.is_paused
        self.request = replace(self.request, is_paused=is_paused, service_class=service_class)
        if self.member is None and is_paused is not was_paused:
            self._waiting_since = None
            self.report_no_engine()

    def recall(self) -> None:
        """Mark the request as asked back from its engine, which ends it like an aborted one."""
        self._is_recalled = True

    @property
    def is_returned(self) -> bool:
        """Return whether its engine has given back every choice that goes on."""
        return bool(self._returned) and not self.num_choices

    def leave_busy_engine(self) -> None:
        """Record that its engine has given it back; the request waits for another one."""
        assert self.member is not None
        member, self.member, self.progress = self.member, None, 0
        self._returned.clear()
        log_request(log, logging.INFO, self.request, "engine %d had no slot; it moves to another engine", member)
        self._report_move(member, MoveReason.BUSY, WaitReason.STEP, was_computing=False)

    def deliver(self, event: Event) -> None:
        """Pass an event to the sink. An exception in one sink must not end the task that serves all requests."""
        try:
            self.sink(event)
        except Exception:
            log_request(log, logging.ERROR, self.request, "an event could not be handled", has_traceback=True)

    def report_no_engine(self) -> None:
        """Report that the request waits for an engine, or that it is paused."""
        self._report_wait(WaitReason.RESTART, 0)

    def report_position(self, position: int) -> None:
        """Report a changed position in the queue for a member; 1: the next."""
        if position != self.position:
            self.position = position
            self._report_wait(WaitReason.ORDER, position)

    def _report_wait(self, cause: WaitReason, position: int) -> None:
        now = self._clock()
        phase, cause = self._note_wait(now, cause)
        self._deliver_to_all(StatusEvent(self.request.id, 0, phase, position, cause=cause, monotonic_time=now))

    def _note_wait(self, now: float, cause: WaitReason) -> tuple[Phase, WaitReason]:
        """Note that the request waits without an engine. Returns the phase and the cause to report."""
        if self.request.is_paused:
            self._wait_cause, self._waiting_since = WaitReason.CLIENT, None
            return Phase.PAUSED, WaitReason.CLIENT
        self._wait_cause = cause
        if self._waiting_since is None:
            self._waiting_since = now
        return Phase.QUEUED, cause

    def _deliver_to_all(self, event: StatusEvent) -> None:
        """Deliver a status event to each choice that goes on."""
        for choice in self.output.keys() - self._aborted:
            self.deliver(replace(event, choice=choice))

    def abort(self, choice: int | None) -> None:
        """Mark the request or one choice as aborted, whether or not an engine receives the abort."""
        self._aborted |= self.output.keys() if choice is None else {choice}

    def end_aborted(self) -> None:
        """End aborted choices without an engine."""
        self.end(self._aborted, FinishReason.ABORT)

    def end(self, choices: Set[int], finish: FinishReason, message: str = "", code: str = "") -> None:
        """End those of `choices` that have not ended, without an event from the engine."""
        for choice in sorted(self.output.keys() & choices):
            self.deliver(StatusEvent(self.request.id, choice, Phase.ENDED, monotonic_time=self._clock()))
            event = EndEvent(self.request.id, choice, finish, message, code)
            self.update(event)
            self.deliver(event)

    def fail(self, message: str, code: str) -> None:
        """End all choices with an error."""
        self.end(self.output.keys(), FinishReason.ERROR, message, code)

    def lose_engine(self, *, has_died: bool, was_computing: bool, is_one_of_several: bool) -> None:
        """Record the loss of its engine, which has died or is drained; the request waits for another one.

        was_computing: the engine may have been computing it.
        """
        member = self.member
        assert member is not None
        is_suspicious = has_died and was_computing
        self.deaths += is_suspicious
        self._returned.clear()
        self.member, self.progress = None, 0
        reason = MoveReason.DIED if has_died else MoveReason.DRAINED
        loss, level = LOSS_TEXTS[reason], logging.WARNING if is_suspicious else logging.INFO
        activity = "while computing it" if was_computing else "while it waited"
        if not is_one_of_several:
            log_request(log, level, self.request, "the engine %s %s; it resumes in the next engine", loss, activity)
            self.report_no_engine()
            return
        log_request(log, level, self.request, "engine %d %s %s; it resumes in another engine", member, loss, activity)
        self._report_move(member, reason, WaitReason.RESTART, was_computing=was_computing)

    def _report_move(self, member: int, reason: MoveReason, cause: WaitReason, *, was_computing: bool) -> None:
        now = self._clock()
        phase, cause = self._note_wait(now, cause)
        self._move = EngineMoveEvent(
            self.request.id,
            0,
            phase,
            cause=cause,
            monotonic_time=now,
            left_engine=member,
            reason=reason,
            was_computing=was_computing,
        )
        self._deliver_to_all(self._move)


class _OrderedSink:
    """Sink of a request whose events have an order to keep: an engine that resumes it lets others adopt it."""

    def __init__(self, request: Request, sink: Sink) -> None:
        self.sent = SentEvents(request.sent)
        self._sink = sink
        self._known = Counter(event.choice for event in self.sent.events_after(request.id, outputs(request)))

    def __call__(self, event: Event) -> None:
        if isinstance(event, TokenEvent | EndEvent):
            if not self._known[event.choice]:
                self.sent.append(event)
            elif event.finish is None:  # it was sent before, and is computed again
                self._known[event.choice] -= 1
            else:
                self._known[event.choice] = 0
        self._sink(event)
