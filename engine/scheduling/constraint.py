"""Restriction of a sequence's next token."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from engine.types import Request, Vocabulary

NO_TOKEN_ALLOWED = -2  # token id of a row whose constraint allows no token


class ConstraintFailure(NamedTuple):
    """Reason for which a constraint allows no token: an error code, and a message for the client."""

    code: str
    message: str


class Drafts(NamedTuple):
    """Guesses of the next tokens, which a constraint allows.

    is_forced: of each token, whether no other text is allowed in its place.
    """

    tokens: tuple[int, ...] = ()
    is_forced: tuple[bool, ...] = ()


NO_DRAFTS = Drafts()


class Constraint(Protocol):
    """Part of a sequence: it follows the tokens of one choice, and is rebuilt from them in another engine.

    A constrained sequence is scheduled only when its last token is known and its mask is computed
    (docs/decisions/0040). After `consume` a mask must be prepared, before it is ready.

    With the mask of the next token, those after some drafts can be prepared: guesses of the next tokens, which change
    nothing but the time that masks take.
    """

    @property
    def is_active(self) -> bool:
        """Return whether the next token is restricted."""

    @property
    def is_ready(self) -> bool:
        """Return whether the mask of the next token is computed, or none is needed."""

    @property
    def failure(self) -> ConstraintFailure | None:
        """Return why no token is allowed; None if the constraint itself is sound."""

    @property
    def drafts(self) -> Drafts:
        """Return the drafts with prepared masks; none before it is ready."""

    def consume(self, token_id: int) -> None:
        """Advance by a sampled token."""

    def prepare_mask(self, proposal: Seq[int] = (), limit: int = 0) -> None:
        """Begin to compute the mask of the next token, unless it is computed, and of up to `limit` drafts after it.

        Drafts are tokens of `proposal` as far as they are allowed, and tokens that no other text allows.
        """

    def take_seconds(self) -> float:
        """Return the processor time of masks since the last call."""

    def write_masks(self, address: int, size: int, count: int = 1) -> None:
        """Write the allowed next tokens to memory: bit i % 32 of the i // 32-th int32 is set for token i.

        count: masks, that of the next token and those after the first drafts. size: bytes of a mask, a multiple of 4.
        Called when it is ready.
        """


class ConstraintSource(Protocol):
    """Source of the constraints of requests (`engine.constraints.compiler`)."""

    def use_vocabulary(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """Set the tokens of the model, which constraints need. vocab_size: number of logits."""

    def prepare(self, request: Request) -> Future[Any] | None:
        """Begin to compile the grammar of a request. Returns None if it has none or it is compiled already."""

    def constraints(self, request: Request) -> Mapping[int, Constraint]:
        """Return the constraint of each choice of a request, after its output so far; empty if it has none.

        Waits for a compilation. Raises `InvalidParameter`.
        """

    def wait_for_masks(self, seconds: float) -> None:
        """Wait until masks of ordinary cost are computed, or for `seconds`."""

    def wait_for_any_mask(self, seconds: float) -> None:
        """Wait until one more mask is computed, or for `seconds`."""
