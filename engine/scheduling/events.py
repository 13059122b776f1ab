"""Events of each step, in order: tokens, ends and status changes."""

from __future__ import annotations

import logging

from engine.cache_note import CacheNote
from engine.request_logging import log_request
from engine.scheduling.admission import Preemption
from engine.scheduling.sequence import Sequence, State
from engine.types import EndEvent, Event, FinishReason, Phase, StatusEvent, WaitReason

log = logging.getLogger("carousel.engine")


class EventBuffer:
    """Buffer of events until they are taken. Code that emits an event per token appends to `events` directly."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._budget_waiters: list[Sequence] = []  # decoding sequences reported as waiting for the budget
        self._held: list[Sequence] = []  # running sequences reported as held up by a trial

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def status(
        self,
        sequence: Sequence,
        phase: Phase,
        now: float,
        cause: WaitReason | None = None,
        cached: int = 0,
        note: CacheNote | None = None,
    ) -> None:
        """Report that the time of `sequence` belongs to `phase` from now on, because of `cause`."""
        sequence.phase, sequence.cause = phase, cause
        is_paused = phase is Phase.PAUSED
        self.events.append(
            StatusEvent(
                sequence.request.id,
                sequence.choice,
                phase,
                sequence.reported_position if sequence.state in (State.WAITING, State.PREEMPTED) else 0,
                cause,
                sequence.preempted_by if is_paused else None,
                sequence.mechanism if is_paused else None,
                sequence.victim_reason if is_paused else "",
                cached,
                now,
                note,
                sequence.draft_note if phase is Phase.ENDED else None,
            )
        )

    def preempted(self, preemption: Preemption, now: float) -> None:
        """Report that a sequence was preempted, and the reason."""
        sequence, beneficiary = preemption.victim, preemption.beneficiary
        sequence.preempted_by = beneficiary.service_class if beneficiary is not None else None
        sequence.mechanism, sequence.victim_reason = preemption.mode, preemption.reason
        sequence.reported_position = 0
        if log.isEnabledFor(logging.DEBUG):
            cause = "because memory ran short" if beneficiary is None else f"for request {beneficiary.request.log_id}"
            message = "choice %d was preempted by %s %s: %s"
            values = (sequence.choice, preemption.mode, cause, preemption.reason)
            log_request(log, logging.DEBUG, sequence.request, message, *values)
        self.status(sequence, Phase.PAUSED, now, WaitReason.ORDER)

    def suspended(self, sequence: Sequence, now: float) -> None:
        """Report that the client of a sequence has paused it."""
        sequence.preempted_by, sequence.mechanism, sequence.victim_reason = None, None, ""
        self.status(sequence, Phase.PAUSED, now, WaitReason.CLIENT)

    def end(
        self,
        sequence: Sequence,
        now: float,
        finish: FinishReason,
        message: str = "",
        code: str = "",
        param: str | None = None,
    ) -> None:
        """Report that a choice ended without a token."""
        if finish is FinishReason.ERROR:
            log_request(log, logging.INFO, sequence.request, "choice %d failed: %s", sequence.choice, message)
        self.status(sequence, Phase.ENDED, now)
        self.events.append(EndEvent(sequence.request.id, sequence.choice, finish, message, code, param))

    def budget_wait(self, sequences: list[Sequence], now: float) -> None:
        """Report the running sequences that get no tokens in this step.

        A decoding sequence is reported once when that begins, and once when all decoding sequences get tokens again; in
        between it takes turns.
        """
        any_decoding = False
        for sequence in sequences:
            is_decoding = sequence.num_uncomputed <= 1
            any_decoding = any_decoding or is_decoding
            # Sequences that are being swapped in are reported when their pages have arrived.
            if sequence.cause is not WaitReason.BUDGET and sequence.phase is not Phase.SWAPPING:
                self.status(sequence, sequence.phase, now, WaitReason.BUDGET)
                if is_decoding:
                    self._budget_waiters.append(sequence)
        if self._budget_waiters and not any_decoding:
            for sequence in self._budget_waiters:
                if sequence.state is State.RUNNING and sequence.phase is Phase.DECODE:
                    self.status(sequence, Phase.DECODE, now)
            self._budget_waiters = []

    def trial_wait(self, held: list[Sequence], now: float) -> None:
        """Report the running sequences that a trial holds up from now on, and those that go on."""
        if not (held or self._held):
            return
        still = {id(sequence) for sequence in held}
        for sequence in self._held:
            is_reported = sequence.state is State.RUNNING and sequence.cause is WaitReason.TRIAL
            if is_reported and id(sequence) not in still:
                self.status(sequence, sequence.phase, now)
        self._held = [sequence for sequence in held if sequence.phase is not Phase.SWAPPING]
        for sequence in self._held:
            if sequence.cause is not WaitReason.TRIAL:
                self.status(sequence, sequence.phase, now, WaitReason.TRIAL)
