"""Failures of a step: sequences that got no token, because of NaN or of their constraints."""

from __future__ import annotations

from collections.abc import Iterator

from engine.scheduling.batch import StepOutcome
from engine.scheduling.constrained import why_no_token
from engine.scheduling.constraint import NO_TOKEN_ALLOWED, ConstraintFailure
from engine.scheduling.sequence import Sequence
from engine.scheduling.step_in_flight import StepInFlight

NAN_MESSAGE = (
    "the model computed NaN for this request, so its answer ends here; either float16 is too narrow for this model "
    "(use --dtype bfloat16 or float32), or the checkpoint is damaged"
)
NAN = ConstraintFailure("not_a_number", NAN_MESSAGE)


def failures(flight: StepInFlight, outcome: StepOutcome) -> Iterator[tuple[Sequence, ConstraintFailure]]:
    """Yield the sequences without a token, and the reasons; some have ended meanwhile, or occur twice.

    A NaN may have spoiled the keys and values of earlier tokens too, if they were computed in the same tile.
    """
    pairs = [pair for pair in zip(flight.sampled, outcome.sampled, strict=True) if pair[1].token_id < 0]
    yield from ((sequence, NAN) for sequence, token in pairs if token.token_id != NO_TOKEN_ALLOWED)
    if outcome.has_nan:
        yield from ((s, NAN) for s, is_broken in zip(flight.chunked, outcome.has_nan, strict=True) if is_broken)
    yield from ((sequence, why_no_token(sequence)) for sequence, _ in pairs)
