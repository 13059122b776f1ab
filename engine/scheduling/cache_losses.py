"""Reasons for which pages left the prefix cache, by digest, for the latest of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from engine.cache_note import CacheMiss
from engine.types import ServiceClass

MAX_LOSSES = 1 << 16
GIVEN_UP = (CacheMiss.SHARE, CacheMiss.EXPIRED)


class Loss(NamedTuple):
    """Reason, and service class of the request that needed the memory. A page that is given up stays until then."""

    reason: CacheMiss
    beneficiary: ServiceClass | None = None


class CacheLosses:
    """Latest loss of each page."""

    def __init__(self, limit: int = MAX_LOSSES) -> None:
        self._limit = limit
        self._losses: OrderedDict[bytes, Loss] = OrderedDict()

    def __len__(self) -> int:
        return len(self._losses)

    def get(self, digest: bytes) -> Loss | None:
        """Return the loss of a page; None if it was not lost, or long ago."""
        return self._losses.get(digest)

    def give_up(self, digest: bytes, reason: CacheMiss) -> None:
        """Record that no session keeps a page any more."""
        self._add(digest, Loss(reason))

    def lose(self, digest: bytes, loss: Loss) -> None:
        """Record that a page has left the cache. If it had been given up, that is the reason."""
        earlier = self._losses.get(digest)
        if earlier is not None and earlier.reason in GIVEN_UP:
            loss = Loss(earlier.reason, loss.beneficiary)
        self._add(digest, loss)

    def forget(self, digest: bytes) -> None:
        """Forget a loss: the page is in the cache and in use."""
        self._losses.pop(digest, None)

    def _add(self, digest: bytes, loss: Loss) -> None:
        self._losses[digest] = loss
        self._losses.move_to_end(digest)
        if len(self._losses) > self._limit:
            self._losses.popitem(last=False)
