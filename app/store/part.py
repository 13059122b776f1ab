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


class Outdated(NamedTuple):
    """Records to remove: at most `limit` of those that ended before `ended` or began before `begun`, Unix seconds."""

    ended: float
    begun: float
    limit: int


def by_statements(*statements: str) -> Callable[[sqlite3.Connection, Outdated], int]:
    """Return a function that removes records by statements, whose parameters are the fields of `Outdated`: the records
    first, then the rows that belong to them.
    """

    def prune(connection: sqlite3.Connection, outdated: Outdated) -> int:
        first, *others = statements
        count = connection.execute(first, outdated._asdict()).rowcount
        for statement in others if count else ():
            connection.execute(statement, outdated._asdict())
        return count

    return prune


@dataclass(frozen=True, slots=True)
class Part:
    """Tables of one kind of records.

    name: of the kind, in the plural, as it is shown. schema: statements that create its tables. usage: query whose rows
    are those of `OwnerUsage`, one for each owner. prune: removes records and returns their number. export: yields the
    JSON of all records, in order of their beginning. ages: `--store-days` applies; if not, their owner deletes them.
    """

    name: str
    schema: str
    usage: str
    prune: Callable[[sqlite3.Connection, Outdated], int]
    export: Callable[[sqlite3.Connection], Iterator[Record]]
    ages: bool = True
