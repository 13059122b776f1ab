"""What others must know about each step, in order: tokens, ends, and where everybody's time goes."""

from __future__ import annotations

import logging

from engine.request_logging import log_request
from engine.scheduling.sequence import Sequence, State
from engine.types import Cause, EndEvent, Event, FinishReason, Phase, StatusEvent

log = logging.getLogger("carousel.engine")


class News:
    """Collects events until they are taken. `events` is open to whoever writes one for each token."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._held_back: list[Sequence] = []  # who decodes, and was told that others' pace comes first

    def take(self) -> list[Event]:
        """What happened since the last call."""
        events, self.events = self.events, []
        return events

    def tell(self, sequence: Sequence, phase: Phase, now: float, cause: Cause | None = None, cached: int = 0) -> None:
        """From now on the time of `sequence` goes to `phase`, for `cause`."""
        sequence.phase, sequence.cause = phase, cause
        is_paused = phase is Phase.PAUSED
        self.events.append(
            StatusEvent(
                sequence.request.id,
                sequence.choice,
                phase,
                sequence.told_position if sequence.state in (State.WAITING, State.PAUSED) else 0,
                cause,
                sequence.paused_by if is_paused else None,
                sequence.mechanism if is_paused else None,
                sequence.paused_why if is_paused else "",
                cached,
                now,
            )
        )

    def tell_end(
        self,
        sequence: Sequence,
        now: float,
        finish: FinishReason,
        message: str = "",
        code: str = "",
        param: str | None = None,
    ) -> None:
        """It ends without a token."""
        if finish is FinishReason.ERROR:
            log_request(log, logging.INFO, sequence.request, "choice %d failed: %s", sequence.choice, message)
        self.tell(sequence, Phase.ENDED, now)
        self.events.append(EndEvent(sequence.request.id, sequence.choice, finish, message, code, param))

    def tell_passed_over(self, sequences: list[Sequence], now: float) -> None:
        """The tokens of this step go to others than `sequences` first. Who decodes hears it once, when that begins, and
        once when all ride again: in between it takes turns."""
        decoding = False
        for sequence in sequences:
            decodes = sequence.num_uncomputed <= 1
            decoding = decoding or decodes
            # Whose pages are still on their way hears it when they are there.
            if sequence.cause is not Cause.BUDGET and sequence.phase is not Phase.SWAPPING:
                self.tell(sequence, sequence.phase, now, Cause.BUDGET)
                if decodes:
                    self._held_back.append(sequence)
        if self._held_back and not decoding:
            for sequence in self._held_back:
                if sequence.state is State.RUNNING and sequence.phase is Phase.DECODE:
                    self.tell(sequence, Phase.DECODE, now)
            self._held_back = []
