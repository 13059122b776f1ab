"""ConstrainedSequences: sequences with constraints, which are in a step only when their masks are computed."""

from __future__ import annotations

from engine.scheduling.constraint import Constraint, ConstraintFailure
from engine.scheduling.counters import CumulativeCounters
from engine.scheduling.events import EventBuffer
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence, State
from engine.scheduling.speculation import Speculation
from engine.types import Phase, WaitReason

NO_TOKEN_MESSAGE = "the answer ends here, because its format or tools allow no further token"
MAX_DRAFT_MASKS = 16  # after drafts, of all sequences in a step, which waits for masks a short time only


class ConstrainedSequences:
    """Unfinished sequences with constraints, and those of them that missed the last step."""

    def __init__(self, policy: Policy, events: EventBuffer, counters: CumulativeCounters) -> None:
        self._policy = policy
        self._events = events
        self._counters = counters
        self._number = 0
        self._without_mask: list[Sequence] = []
        self._advanced: dict[Sequence, None] = {}  # since masks were last prepared

    @property
    def waits_for_masks(self) -> bool:
        """Return whether sequences missed the last step because their masks were not computed."""
        return bool(self._without_mask)

    def add(self, sequence: Sequence, constraint: Constraint) -> None:
        """Give a sequence its constraint."""
        sequence.constraint = constraint
        self._number += 1

    def prepared(self, running: list[Sequence], now: float) -> list[Sequence]:
        """Return the sequences that can be in a step; those with a constraint need their last token and a mask."""
        if not self._number:
            return running
        prepared: list[Sequence] = []
        without_mask: list[Sequence] = []
        for sequence in running:
            constraint = sequence.constraint
            if constraint is None:
                prepared.append(sequence)
            elif not sequence.has_token_in_flight:
                (prepared if constraint.is_ready else without_mask).append(sequence)
        self._report(without_mask, now)
        return prepared

    def in_step(self, sampled: list[Sequence]) -> tuple[tuple[int, Constraint], ...]:
        """Return the active constraints of sequences that sample a token, by slot."""
        if not self._number:
            return ()
        pairs = ((s.slot, s.constraint) for s in sampled)
        return tuple((slot, c) for slot, c in pairs if slot is not None and c is not None and c.is_active)

    def advance(self, sequence: Sequence, token_id: int) -> None:
        """Let the constraint of a sequence follow a sampled token."""
        assert sequence.constraint is not None, sequence
        self._charge(sequence, sequence.constraint)
        sequence.constraint.consume(token_id)
        self._advanced[sequence] = None

    def prepare_masks(self, speculation: Speculation | None) -> None:
        """Begin to compute the masks of the sequences that have advanced, and some after drafts, divided among them."""
        most = MAX_DRAFT_MASKS // len(self._advanced) if self._advanced and speculation is not None else 0
        for sequence in self._advanced:
            if sequence.constraint is not None:  # it has not ended
                proposal = speculation.propose(sequence, most) if most and speculation is not None else ()
                sequence.constraint.prepare_mask(*proposal)
        self._advanced.clear()

    def remove(self, sequence: Sequence) -> None:
        """Forget a finished sequence, if it has a constraint."""
        if sequence.constraint is None:
            return
        self._charge(sequence, sequence.constraint)
        sequence.constraint = None
        self._number -= 1
        if sequence in self._without_mask:
            self._without_mask.remove(sequence)

    def _charge(self, sequence: Sequence, constraint: Constraint) -> None:
        """Charge the time of masks to the tenant."""
        seconds = constraint.take_seconds()
        self._policy.host_time_spent(sequence, seconds)
        self._counters.add("mask_microseconds", round(1e6 * seconds))

    def _report(self, without_mask: list[Sequence], now: float) -> None:
        """Report the sequences that miss this step, and those that no longer wait."""
        for sequence in self._without_mask:
            is_waiting = sequence.cause is WaitReason.GRAMMAR and sequence.state is State.RUNNING
            if is_waiting and sequence not in without_mask:
                self._events.status(sequence, sequence.phase, now)
        for sequence in without_mask:
            if sequence.cause is not WaitReason.GRAMMAR and sequence.phase is not Phase.SWAPPING:
                self._events.status(sequence, sequence.phase, now, WaitReason.GRAMMAR)
        self._without_mask = without_mask
        self._counters.add("rows_without_mask", len(without_mask))


def why_no_token(sequence: Sequence) -> ConstraintFailure:
    """Return why a constrained sequence has no token: its constraint failed, or other parameters exclude the rest."""
    failure = sequence.constraint.failure if sequence.constraint is not None else None
    if failure is not None:
        return failure
    sampling = sequence.request.sampling
    sent = (("min_tokens", sampling.min_tokens), ("logit_bias", sampling.logit_bias))
    together = " and ".join(name for name, value in sent if value)
    message = f"{NO_TOKEN_MESSAGE} together with {together}" if together else NO_TOKEN_MESSAGE
    return ConstraintFailure("no_token_allowed", message)
