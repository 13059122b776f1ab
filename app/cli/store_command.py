"""`carousel store`: show, prune and export what a server keeps over a restart, even while it runs."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from app.settings import Settings
from app.store.database import BUSY_SECONDS, SCHEMA_VERSION, StoreError, check, read_only
from app.store.location import default_file, files_of_processes
from app.store.part import OwnerUsage
from app.store.parts import PARTS
from app.store.pruning import DAY_SECONDS, remove_batch
from engine.options import declared_options

OWNER_DIGITS = 12  # of a digest, as `carousel keys list` shows them
NO_OWNER = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = commands.add_parser("show", help="print the number, size and age of records, by kind and by owner")
    prune = commands.add_parser("prune", help="remove old records")
    which = prune.add_mutually_exclusive_group(required=True)
    which.add_argument("--days", type=_days, metavar="N", help="remove records that ended more than N days ago")
    which.add_argument("--all", action="store_true", help="remove all records, also those of unfinished answers")
    export = commands.add_parser("export", help="print all records, one JSON object a line, with texts of users")
    port = next(option.default for option in declared_options(Settings) if option.key == "port")
    for command in (show, prune, export):
        stores = "default: the store of the server at --port, or those of its API processes"
        command.add_argument("file", type=Path, nargs="?", help=stores)
        command.add_argument("--port", type=int, default=int(port), help="port of a server; default: %(default)s")


def run(options: argparse.Namespace) -> Iterator[str]:
    """Execute the subcommand, and yield the lines that it prints. Raises `StoreError`."""
    if options.file is not None:
        yield from _run_on(options.file, options)
        return
    if (path := default_file(options.port)) is None:
        raise StoreError("there is no home folder; name the file")
    for each in files_of_processes(path).values() or (path,):
        yield from _run_on(each, options)


def _run_on(path: Path, options: argparse.Namespace) -> Iterator[str]:
    if not path.is_file():
        raise StoreError(f"store: {path}: there is no such file")
    try:
        if options.action == "prune":
            yield from _prune(path, None if options.all else options.days)
        else:
            yield from _show(path) if options.action == "show" else _export(path)
    except (sqlite3.Error, StoreError) as error:
        raise StoreError(f"store: {path}: {_explained(error)}") from None


def _explained(error: Exception) -> str:
    if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
        return f"it stayed locked for {BUSY_SECONDS:.0f} s by another process; run the command again"
    return str(error)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file for one consistent reading, beside a server that writes it."""
    with contextlib.closing(read_only(path)) as connection:
        _check(connection)
        connection.execute("BEGIN")
        yield connection


def _check(connection: sqlite3.Connection) -> None:
    if not check(connection):
        raise StoreError("it is empty")


def _show(path: Path) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("kind", "records", "bytes", "oldest", "newest", "unfinished")]
    owners: list[tuple[str, ...]] = [("owner", "kind", "records", "bytes")]
    with _reading(path) as connection:
        for part in PARTS:
            usages = [OwnerUsage._make(row) for row in connection.execute(part.usage)]
            rows.append((part.name, *_sums(usages)))
            owners += [
                (usage.owner[:OWNER_DIGITS], part.name, f"{usage.records:,}", f"{usage.bytes:,}")
                for usage in sorted(usages, key=lambda usage: -usage.bytes)
                if usage.owner
            ]
    size = sum(each.stat().st_size for each in (path, path.with_name(f"{path.name}-wal")) if each.exists())
    yield f"{path}: {size:,} bytes, version {SCHEMA_VERSION}"
    yield ""
    yield from _table(rows)
    if len(owners) > 1:
        yield ""
        yield from _table(owners)


def _sums(usages: Sequence[OwnerUsage]) -> tuple[str, ...]:
    if not usages:
        return "0", "0", NO_OWNER, NO_OWNER, "0"
    numbers = [sum(usage.records for usage in usages), sum(usage.bytes for usage in usages)]
    moments = min(usage.oldest for usage in usages), max(usage.newest for usage in usages)
    unfinished = sum(usage.unfinished for usage in usages)
    return (*(f"{number:,}" for number in numbers), *map(_moment, moments), f"{unfinished:,}")


def _moment(seconds: float) -> str:
    """Return a time in UTC, to the second."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # of a clock that was wrong
        return f"{seconds:.0f}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _prune(path: Path, days: float | None) -> Iterator[str]:
    """Remove records that ended more than `days` ago. None: remove all."""
    ended, begun = (math.inf, math.inf) if days is None else (time.time() - days * DAY_SECONDS, -math.inf)
    removed: Counter[str] = Counter()
    address = f"{path.absolute().as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        _check(connection)
        connection.execute("PRAGMA secure_delete = ON")  # texts do not stay in unused parts of the file
        while batch := remove_batch(connection, ended, begun):
            removed.update(batch)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # nor in the file of recent changes
    for part in PARTS:
        yield f"{removed[part.name]:,} {part.name} removed"


def _export(path: Path) -> Iterator[str]:
    with _reading(path) as connection:
        for part in PARTS:
            for record in part.export(connection):
                yield json.dumps(record, ensure_ascii=False)


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of days of at least 0, got {text!r}")
    return days


def print_lines(lines: Iterator[str]) -> None:
    """Print lines in UTF-8, as they are made."""
    for line in lines:
        sys.stdout.buffer.write(f"{line}\n".encode())
    sys.stdout.flush()
