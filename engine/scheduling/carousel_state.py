"""State of one sequence in the carousel policy, kept in `Sequence.policy_state`."""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduling.account import Account
from engine.scheduling.sequence import Sequence


@dataclass(slots=True, eq=False)
class CarouselState:
    """Service, bounds and pace of one sequence."""

    account: Account  # of its tenant
    overdue_at: float = 0.0  # when it becomes overdue
    is_overdue: bool = False  # waits, and has waited longer than its bound
    guaranteed_tokens_left: int = 0  # tokens that it should generate before it is preempted again
    has_guarantee: bool = False  # and is guaranteed to generate
    last_piggyback_step: int = 0  # the step in which it last piggybacked on a higher class
    next_token_due: float = 0.0  # deadline of its next token ...
    paced_tokens: int = 0  # ... as computed when it had this many tokens

    @property
    def is_protected(self) -> bool:
        """Return whether its guaranteed minimum share lasts: it is preempted only if no other sequence can be."""
        return self.has_guarantee and self.guaranteed_tokens_left > 0


def state_of(sequence: Sequence) -> CarouselState:
    """Return the policy's state of `sequence`."""
    state: CarouselState = sequence.policy_state
    return state
