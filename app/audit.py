"""The account of a request's time: from its arrival to its end, every moment has a phase and, where it waited, a cause.

Fed with the engine's status events, whose clock is this process's too. Intervals follow each other without a gap, so
they sum to the wall time by construction. Nothing in them tells about another request: of who was served first, the
class alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.types import Cause, Mechanism, Phase, ServiceClass, StatusEvent

IN_SLOT = (Phase.PREFILL, Phase.DECODE, Phase.SWAPPING)
INTAKE = "intake"  # from its arrival to its hand-over to the engine: it is read, and its text tokenised
DELIVERY = "delivery"  # from the engine's last word to the end of the answer
WORTH_TELLING = 0.01  # seconds of a wait in an intake; below, whoever was served in between may be the reason
BEHIND = 0.05  # seconds after its end for which an answer's reader is said to have been behind


@dataclass(slots=True)
class Interval:
    """A stretch of time with one explanation. Seconds on the monotonic clock; `ended` is None while it lasts."""

    began: float
    phase: str
    cause: Cause | None = None
    by: ServiceClass | None = None
    mechanism: Mechanism | None = None
    why: str = ""
    ended: float | None = None

    def view(self, arrived: float, now: float) -> dict[str, Any]:
        """As clients read it."""
        ended = now if self.ended is None else self.ended
        view: dict[str, Any] = {
            "phase": self.phase,
            "began_ms": _milliseconds(self.began - arrived),
            "ms": _milliseconds(ended - self.began),
        }
        if self.cause is not None:
            view["cause"] = self.cause.value
        if self.phase == Phase.PAUSED:
            view["by"] = self.by.label if self.by is not None else None
            view["mechanism"] = self.mechanism.value if self.mechanism is not None else None
            view["why"] = self.why
        return view


class Intake:
    """The beginning of an account, which all choices share. Times are monotonic seconds."""

    def __init__(self, arrived: float, client_id: str = "") -> None:
        """client_id: the ID by which its client knows the request, for log lines; empty: it has none of its own."""
        self.arrived = arrived
        self.client_id = client_id
        self.complete = arrived  # when all of it was there: what came before is its client's time
        self._intervals = [Interval(arrived, INTAKE)]

    def has_come(self, now: float) -> None:
        """Its body is there."""
        self.complete = now
        self.waited(self.arrived, now, Cause.BODY)

    def waited(self, began: float, ended: float, cause: Cause) -> None:
        """That was the reason why nothing was done for it in between."""
        if ended - began < WORTH_TELLING:
            return
        self._intervals[-1].ended = began
        self._intervals += [Interval(began, INTAKE, cause, ended=ended), Interval(ended, INTAKE)]

    def end(self, now: float) -> list[Interval]:
        """It is the engine's: how its account begins, without what took no time."""
        self._intervals[-1].ended = now
        return [interval for interval in self._intervals if interval.ended != interval.began]


class Audit:
    """The accounts of one request's choices."""

    def __init__(self, choices: int, intake: Intake, submitted: float) -> None:
        self.arrived = intake.arrived
        self.ended: float | None = None
        self.closed_at: float | None = None  # when the engine had done with it
        # The first choice waits for the next step, the others for the first to have read the prompt.
        causes = [Cause.STEP, *[Cause.PROMPT] * (choices - 1)]
        begun = intake.end(submitted)
        self.choices = [[*begun, Interval(submitted, Phase.QUEUED, cause)] for cause in causes]
        self._last = self.choices[0]  # once closed: those of the choice that ended last

    def take(self, event: StatusEvent) -> None:
        """What happened to one choice. Once more the same opens no new interval."""
        intervals = self.choices[event.choice]
        last = intervals[-1]
        if last.ended is not None:
            return
        now = (event.phase, event.cause, event.by, event.mechanism)
        if now == (last.phase, last.cause, last.by, last.mechanism):
            return
        last.ended = max(event.at, last.began)
        if event.phase is not Phase.ENDED:
            intervals.append(Interval(last.ended, event.phase, event.cause, event.by, event.mechanism, event.why))

    def close(self, now: float, *, is_read: bool = False) -> None:
        """The answer is complete, or given up: the engine has no part in what follows. While it `is_read` it is not
        over: its reader may have a part of it still to take."""
        if self.closed_at is not None:
            return
        self.closed_at = now
        for intervals in self.choices:
            if intervals[-1].ended is None:
                intervals[-1].ended = now
        self._last = max(self.choices, key=lambda intervals: intervals[-1].ended or 0.0)
        behind = self._last[-1].ended or now
        if behind < now or is_read:
            self._last.append(Interval(behind, DELIVERY, ended=None if is_read else now))
        if not is_read:
            self.ended = now

    def delivered(self, now: float) -> None:
        """Its last reader has taken all of it, or is gone."""
        if self.closed_at is None or self.ended is not None:
            return
        self.ended = self._last[-1].ended = now
        if now - self.closed_at > BEHIND:
            self._last[-1].ended = self.closed_at
            self._last.append(Interval(self.closed_at, DELIVERY, Cause.READER, ended=now))

    @property
    def slot_seconds(self) -> float:
        """Time that its choices had a slot."""
        now = 0.0 if self.ended is None else self.ended
        return sum(
            (now if i.ended is None else i.ended) - i.began
            for intervals in self.choices
            for i in intervals
            if i.phase in IN_SLOT
        )

    def totals(self, now: float) -> dict[str, float]:
        """Milliseconds of the first choice by phase, in the order in which it came to them."""
        seconds: dict[str, float] = {}
        for interval in self.choices[0]:
            spent = (now if interval.ended is None else interval.ended) - interval.began
            seconds[interval.phase] = seconds.get(interval.phase, 0.0) + spent
        return {phase: _milliseconds(spent) for phase, spent in seconds.items()}

    def view(self, now: float) -> dict[str, Any]:
        """Wall time, what it went to, and the intervals of each choice, in milliseconds."""
        end = now if self.ended is None else self.ended
        return {
            "wall_ms": _milliseconds(end - self.arrived),
            "totals_ms": self.totals(end),
            "choices": [
                {"index": index, "intervals": [interval.view(self.arrived, end) for interval in intervals]}
                for index, intervals in enumerate(self.choices)
            ],
        }


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 3)
