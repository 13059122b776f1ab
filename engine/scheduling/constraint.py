"""Restriction of a sequence's next token."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Protocol

from engine.types import Request, Vocabulary

NO_TOKEN_ALLOWED = -2  # token id of a row whose constraint allows no token


class Constraint(Protocol):
    """Part of a sequence: it follows the tokens of one choice, and is rebuilt from them in another engine.

    A constrained sequence is scheduled only when its last token is known (docs/decisions/0040).
    """

    @property
    def is_active(self) -> bool:
        """Return whether the next token is restricted."""

    @property
    def error(self) -> str:
        """Return why no token is allowed; empty if the constraint itself is sound."""

    def consume(self, token_id: int) -> None:
        """Advance by a sampled token."""

    def write_mask(self, address: int, size: int) -> None:
        """Write the allowed next tokens to memory: bit i % 32 of the i // 32-th int32 is set for token i.

        size: bytes, a multiple of 4. Called in any thread, never at the same time as `consume`.
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
