"""Rows of the chat page: texts that only the page understands, each under an id of its own, in versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

ROW_BYTES = 200  # of a row beside its texts, with its entries in indexes


class PageRow(msgspec.Struct, frozen=True):
    """Version of a row. value: text of the page; None if the row was deleted."""

    id: str
    revision: int
    writer: str
    value: str | None

    @property
    def size(self) -> int:
        """Return the bytes that it counts as."""
        return ROW_BYTES + len(self.id.encode()) + len(self.writer) + len((self.value or "").encode())


class NumberedRow(PageRow, frozen=True):
    """Row with the number of its last change."""

    number: int


class RowList(msgspec.Struct, frozen=True):
    """Rows that have changed after a number, in the order of their changes. last: number up to which they are complete.
    epoch: of all rows of the owner; another one for another owner, and for a file that lacks earlier rows.
    """

    rows: Sequence[NumberedRow]
    last: int
    has_more: bool
    epoch: str


class Joined(NamedTuple):
    """Result of a join. last: number of the owner's last change. epoch: as in `RowList`."""

    last: int
    epoch: str
