"""Part: one kind of records of a store, described by its statements."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Record = dict[str, object]  # JSON of one record, as `carousel store export` writes it


class OwnerUsage(NamedTuple):
    """Records of one owner. Times are Unix seconds. unfinished: number of records that have not ended."""

    owner: str
    records: int
    bytes: int
    oldest: float
    newest: float
    unfinished: int


@dataclass(frozen=True, slots=True)
class Part:
    """Tables of one kind of records.

    name: of the kind, in the plural, as it is shown. schema: statements that create its tables. usage: query whose rows
    are those of `OwnerUsage`, one for each owner. prune: statements that remove at most `:limit` records which ended
    before `:ended` or began before `:begun` (Unix seconds), the records first, then the rows that belong to them; the
    first statement's row count is the number of removed records. export: yields the JSON of all records, in order of
    their beginning.
    """

    name: str
    schema: str
    usage: str
    prune: tuple[str, ...]
    export: Callable[[sqlite3.Connection], Iterator[Record]]
