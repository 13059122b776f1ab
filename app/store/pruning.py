"""Removal of old records from all parts of a store, in batches."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from app.store.part import Outdated, Part
from app.store.parts import PARTS

DAY_SECONDS = 86_400.0
BATCH_RECORDS = 500  # of each part in one transaction


def remove_batch(
    connection: sqlite3.Connection, ended: float, begun: float, parts: Iterable[Part] = PARTS
) -> dict[str, int]:
    """Remove some records of each part that ended before `ended` or began before `begun` (Unix seconds), in one
    transaction. Returns their numbers by name of the part; empty: none is left.
    """
    removed: dict[str, int] = {}
    outdated = Outdated(ended, begun, BATCH_RECORDS)
    with connection:
        for part in parts:
            if count := part.prune(connection, outdated):
                removed[part.name] = count
    return removed


@dataclass(frozen=True, slots=True)
class AgeLimit:
    """Limit of the age of records. Those that have not ended count from their beginning: their server never came back.

    clock: wall clock.
    """

    days: float
    clock: Callable[[], float] = time.time

    def remove_batch(self, connection: sqlite3.Connection) -> bool:
        """Remove some records that are too old. Returns whether more may be left."""
        before = self.clock() - self.days * DAY_SECONDS
        return bool(remove_batch(connection, before, before, [part for part in PARTS if part.ages]))
