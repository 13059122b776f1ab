"""Account of the service that a tenant received (`fairness`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sortedcontainers import SortedKeyList

from engine.scheduling.sequence import Sequence


class Account:
    """Service that one tenant received in one queue."""

    __slots__ = ("is_listed", "running", "serial", "served", "waiting", "weight")

    def __init__(self, weight: float, order: Callable[[Sequence], Any]) -> None:
        self.serial = 0  # among equals, the tenant that began to wait last goes first: the others have had their turn
        self.weight = weight
        self.served = 0.0  # weighted tokens, divided by `weight`; only grows
        self.waiting: SortedKeyList[Sequence, Any] = SortedKeyList(key=order)
        self.running = 0  # occupied slots
        self.is_listed = False  # has an entry in its queue's heap

    @property
    def is_active(self) -> bool:
        """Return whether the tenant has running or waiting sequences."""
        return self.running > 0 or bool(self.waiting)

    def charge(self, weighted_tokens: float) -> None:
        """Add served tokens."""
        self.served += weighted_tokens / self.weight
