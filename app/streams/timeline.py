"""Timeline of a request: from its arrival to its end, every moment has a phase and, while it waits, a cause.

Built from the engine's status events, whose clock is this process's too. Intervals follow each other without a gap, so
they sum to the wall time by construction. They reveal nothing about other requests except the class of the request that
was served first, or that needed the memory of cached pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from app.streams.status import EngineMoveEvent
from engine.cache_note import CacheNote
from engine.drafting.note import DraftNote
from engine.types import Phase, PreemptionMode, ServiceClass, StatusEvent, WaitReason

IN_SLOT = (Phase.PREFILL, Phase.DECODE, Phase.SWAPPING)
INTAKE = "intake"  # from arrival until submission to the engine: the body is read and the text tokenized
DELIVERY = "delivery"  # from the engine's last event to the end of the answer
# seconds; a shorter wait during intake is not attributed, as other work in between may be its cause
MIN_ATTRIBUTED_SECONDS = 0.01
# seconds after the end of generation from which delivery time is attributed to a slow reader
SLOW_READER_SECONDS = 0.05


@dataclass(slots=True)
class Interval:
    """Interval of time with one explanation. Times are monotonic seconds; `ended` is None while it lasts."""

    began: float
    phase: str
    cause: WaitReason | None = None
    preempted_by: ServiceClass | None = None
    preemption_mode: PreemptionMode | None = None
    victim_reason: str = ""
    move: EngineMoveEvent | None = None  # to another of several engines, for which it waited
    ended: float | None = None

    def view(self, arrived: float, now: float) -> dict[str, Any]:
        """Return the interval as clients receive it."""
        ended = now if self.ended is None else self.ended
        view: dict[str, Any] = {
            "phase": self.phase,
            "began_ms": _milliseconds(self.began - arrived),
            "ms": _milliseconds(ended - self.began),
        }
        if self.cause is not None:
            view["cause"] = self.cause.value
        if self.phase == Phase.PAUSED and self.cause is not WaitReason.CLIENT:
            view["by"] = self.preempted_by.label if self.preempted_by is not None else None
            view["mechanism"] = self.preemption_mode.value if self.preemption_mode is not None else None
            view["why"] = self.victim_reason
        if self.move is not None:
            view |= {
                "left_engine": self.move.left_engine,
                "move_reason": self.move.reason.value,
                "was_computing": self.move.was_computing,
                "next_engine": self.move.next_engine,
            }
        return view


class IntakeTimeline:
    """Beginning of a timeline, which all choices share. Times are monotonic seconds."""

    def __init__(self, arrived: float, client_id: str = "") -> None:
        """client_id: ID that the client sent for its request, for log lines; empty if it sent none."""
        self.arrived_at = arrived
        self.client_id = client_id
        self.received_at = arrived  # when the whole request had arrived; earlier time is the client's
        self._intervals = [Interval(arrived, INTAKE)]

    def body_received(self, now: float) -> None:
        """Record that the body has arrived."""
        self.received_at = now
        self.record_wait(self.arrived_at, now, WaitReason.REQUEST_BODY)

    def record_wait(self, began: float, ended: float, cause: WaitReason) -> None:
        """Record that processing waited for `cause` from `began` to `ended`."""
        if ended - began < MIN_ATTRIBUTED_SECONDS:
            return
        self._intervals[-1].ended = began
        self._intervals += [Interval(began, INTAKE, cause, ended=ended), Interval(ended, INTAKE)]

    def end(self, now: float) -> list[Interval]:
        """End the intake, as the engine takes over, and return its intervals without empty ones."""
        self._intervals[-1].ended = now
        return [interval for interval in self._intervals if interval.ended != interval.began]


class RequestTimeline:
    """Timelines of the choices of one request."""

    def __init__(self, choices: int, intake: IntakeTimeline, submitted: float) -> None:
        self.arrived = intake.arrived_at
        self.ended: float | None = None
        self.closed_at: float | None = None  # when the engine finished
        self.cache_note: CacheNote | None = None  # of the engine that was the first to compute the prompt
        self.draft_notes: dict[int, DraftNote] = {}  # by choice, of those with drafts that an engine has ended
        # The first choice waits for the next step, the others until the first has processed the prompt.
        causes = [WaitReason.STEP, *[WaitReason.PROMPT] * (choices - 1)]
        begun = intake.end(submitted)
        self.choices = [[*begun, Interval(submitted, Phase.QUEUED, cause)] for cause in causes]
        self._last = self.choices[0]  # after `close`: the intervals of the choice that ended last

    def add(self, event: StatusEvent) -> None:
        """Add a status event of one choice. A repeated status opens no new interval."""
        self.cache_note = self.cache_note or event.cache_note
        self.add_drafts(event)
        intervals = self.choices[event.choice]
        last = intervals[-1]
        if isinstance(event, EngineMoveEvent):
            self._add_move(intervals, event)
            return
        if last.ended is not None:
            return
        now = (event.phase, event.cause, event.preempted_by, event.mechanism)
        if now == (last.phase, last.cause, last.preempted_by, last.preemption_mode):
            return
        last.ended = max(event.monotonic_time, last.began)
        if event.phase is not Phase.ENDED:
            intervals.append(
                Interval(last.ended, event.phase, event.cause, event.preempted_by, event.mechanism, event.victim_reason)
            )

    def add_drafts(self, event: StatusEvent) -> None:
        """Add the drafts of a choice that an engine has ended, possibly after the end of the answer."""
        if event.draft_note is not None:
            self.draft_notes[event.choice] = event.draft_note

    def _add_move(self, intervals: list[Interval], event: EngineMoveEvent) -> None:
        last = intervals[-1]
        if event.next_engine is not None:
            for interval in (interval for interval in intervals if interval.move is not None):
                if interval.move == replace(event, next_engine=None):
                    interval.move = event
        elif last.ended is None:
            last.ended = max(event.monotonic_time, last.began)
            intervals.append(Interval(last.ended, event.phase, event.cause, move=event))

    def close(self, now: float, *, is_read: bool = False) -> None:
        """Record that the answer is complete or was given up; the engine has no part in later time. With `is_read` the
        timeline stays open, because a reader may still have to receive a part of the answer.
        """
        if self.closed_at is not None:
            return
        self.closed_at = now
        for intervals in self.choices:
            if intervals[-1].ended is None:
                intervals[-1].ended = now
        self._last = max(self.choices, key=lambda intervals: intervals[-1].ended or 0.0)
        generated_at = self._last[-1].ended or now
        if generated_at < now or is_read:
            self._last.append(Interval(generated_at, DELIVERY, ended=None if is_read else now))
        if not is_read:
            self.ended = now

    def record_delivery(self, now: float) -> None:
        """Record that the last reader has received everything or has left."""
        if self.closed_at is None or self.ended is not None:
            return
        self.ended = self._last[-1].ended = now
        if now - self.closed_at > SLOW_READER_SECONDS:
            self._last[-1].ended = self.closed_at
            self._last.append(Interval(self.closed_at, DELIVERY, WaitReason.READER, ended=now))

    @property
    def slot_seconds(self) -> float:
        """Return the total time that the choices occupied a slot, in seconds."""
        now = 0.0 if self.ended is None else self.ended
        return sum(
            (now if i.ended is None else i.ended) - i.began
            for intervals in self.choices
            for i in intervals
            if i.phase in IN_SLOT
        )

    def totals_ms(self, now: float) -> dict[str, float]:
        """Return the milliseconds of the first choice by phase, in order of first occurrence."""
        seconds: dict[str, float] = {}
        for interval in self.choices[0]:
            duration = (now if interval.ended is None else interval.ended) - interval.began
            seconds[interval.phase] = seconds.get(interval.phase, 0.0) + duration
        return {phase: _milliseconds(duration) for phase, duration in seconds.items()}

    def view(self, now: float) -> dict[str, Any]:
        """Return wall time, its sum by phase, and the intervals of each choice, in milliseconds."""
        end = now if self.ended is None else self.ended
        return {
            "wall_ms": _milliseconds(end - self.arrived),
            "totals_ms": self.totals_ms(end),
            "choices": [
                {
                    "index": index,
                    "drafts": _drafts_view(self.draft_notes.get(index)),
                    "intervals": [interval.view(self.arrived, end) for interval in intervals],
                }
                for index, intervals in enumerate(self.choices)
            ],
        }


def _drafts_view(note: DraftNote | None) -> dict[str, Any] | None:
    """Return an engine's note about the drafts of a choice as clients receive it."""
    if note is None:
        return None
    tokens = note.steps + sum(note.accepted.values())
    return {"tokens": tokens, "steps": note.steps, "drafted": note.drafted, "accepted": note.accepted}


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
