"""`carousel usage FILE`: usage and cost by tenant or other keys. Reads the file that app/observe/metering.py writes,
even during writing.

Sums are integers (tokens, microseconds) and money is in fractions: exact until printed, then rounded once.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

from app.observe.metering import MeteringError, check

KEYS = {
    "tenant": "tenant",
    "tier": "tier",
    "model": "model",
    "outcome": "outcome",
    "request": "request_id",
    "hour": "strftime('%Y-%m-%dT%H:00Z', ended_at, 'unixepoch')",
    "day": "strftime('%Y-%m-%d', ended_at, 'unixepoch')",
    "month": "strftime('%Y-%m', ended_at, 'unixepoch')",
}
FORMATS = ("table", "csv", "json")
MICRO = Decimal(10) ** -6
BUSY_SECONDS = 10.0


@dataclass(frozen=True)
class Prices:
    """Prices in the operator's currency: per hour of the whole machine, and per million tokens."""

    per_hour: Fraction = Fraction(0)
    input: Fraction = Fraction(0)
    cached: Fraction = Fraction(0)
    output: Fraction = Fraction(0)


@dataclass
class Sums:
    """Sums over some requests."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    slot_micros: int = 0
    wall_micros: int = 0
    machine_micros: Fraction = field(default_factory=Fraction)  # slot_micros as a share of the machine's slots

    def add(self, other: Sums) -> None:
        """Add the sums of other requests."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def cost(self, prices: Prices) -> Fraction:
        """Return the exact cost."""
        tokens = (
            (self.input_tokens - self.cached_tokens) * prices.input
            + self.cached_tokens * prices.cached
            + self.output_tokens * prices.output
        ) / 1_000_000
        return tokens + self.machine_micros * prices.per_hour / 3_600_000_000


Groups = dict[tuple[str, ...], Sums]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `carousel usage`."""
    parser.add_argument("file", type=Path, help="file of `carousel serve --metering`, which may be running")
    parser.add_argument(
        "--since", type=_timestamp, metavar="ISO", help="only requests that ended at or after this time; UTC"
    )
    parser.add_argument(
        "--until", type=_timestamp, metavar="ISO", help="only requests that ended before this time; UTC"
    )
    parser.add_argument(
        "--by", type=_keys, default=("tenant", "tier"), metavar="KEYS",
        help=f"keys of the sums, separated by commas: {', '.join(KEYS)}; default: tenant,tier",
    )  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("--price-per-hour", type=_price, metavar="X", help="price of the whole machine per hour")
    parser.add_argument("--price-input", type=_price, metavar="X", help="price of a million input tokens")
    parser.add_argument(
        "--price-cached", type=_price, metavar="X", help="price of a million cached tokens; default: same"
    )
    parser.add_argument("--price-output", type=_price, metavar="X", help="price of a million output tokens")


def report(options: argparse.Namespace) -> str:
    """Return the text that the command prints. Raises `MeteringError`."""
    given = (options.price_per_hour, options.price_input, options.price_cached, options.price_output)
    cached = options.price_input if options.price_cached is None else options.price_cached
    prices = None
    if any(price is not None for price in given):
        ordered = (options.price_per_hour, options.price_input, cached, options.price_output)
        prices = Prices(*(price or Fraction(0) for price in ordered))
    groups = read(options.file, options.by, options.since, options.until)
    formatter = {"table": _table, "csv": _csv, "json": _json}[options.format]
    return formatter(options.by, groups, prices)


def read(path: Path, by: Sequence[str], since: float | None = None, until: float | None = None) -> Groups:
    """Return the sums of the requests that ended in [since, until), Unix seconds, for each value of the keys, sorted.
    Raises `MeteringError`.
    """
    keys = [KEYS[key] for key in by]
    # Each value is rounded to whole microseconds, as it was written: a sum of floats would depend on its order.
    columns = (
        "count(*)", "sum(input_tokens)", "sum(cached_tokens)", "sum(output_tokens)",
        "sum(cast(round(slot_seconds * 1e6) AS INTEGER))", "sum(cast(round(wall_seconds * 1e6) AS INTEGER))",
    )  # fmt: skip
    query = (
        f"SELECT {', '.join((*keys, 'slots', *columns))} FROM usage WHERE ended_at >= ? AND ended_at < ? "
        f"GROUP BY {', '.join((*keys, 'slots'))}"
    )
    bounds = (float("-inf") if since is None else since, float("inf") if until is None else until)
    groups: defaultdict[tuple[str, ...], Sums] = defaultdict(Sums)
    for *values, slots, requests, input_, cached, output, slot, wall in _rows(path, query, bounds):
        groups[tuple(values)].add(Sums(requests, input_, cached, output, slot, wall, Fraction(slot, slots)))
    return dict(sorted(groups.items()))


def _rows(path: Path, query: str, bounds: tuple[float, float]) -> list[tuple[Any, ...]]:
    if not path.is_file():
        raise MeteringError(f"{path}: there is no such file")
    try:
        try:
            return _query(path, "mode=ro", query, bounds)
        except sqlite3.OperationalError:
            if path.with_name(f"{path.name}-wal").exists():
                raise
            # For concurrent reading SQLite creates a file beside it, which may be forbidden; without a -wal file no
            # process writes.
            return _query(path, "immutable=1", query, bounds)
    except (sqlite3.Error, MeteringError) as error:
        raise MeteringError(f"{path}: {error}") from None


def _query(path: Path, mode: str, query: str, bounds: tuple[float, float]) -> list[tuple[Any, ...]]:
    address = f"{path.resolve().as_uri()}?{mode}"
    with contextlib.closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as connection:
        return connection.execute(query, bounds).fetchall() if check(connection) else []


def _total(groups: Iterable[Sums]) -> Sums:
    total = Sums()
    for sums in groups:
        total.add(sums)
    return total


def decimal(value: Fraction) -> Decimal:
    """Return a value with six decimal places."""
    with localcontext() as context:
        context.prec = 60
        return (Decimal(value.numerator) / Decimal(value.denominator)).quantize(MICRO)


def _fields(sums: Sums, prices: Prices | None) -> dict[str, Any]:
    fields = {
        "requests": sums.requests,
        "input_tokens": sums.input_tokens,
        "cached_tokens": sums.cached_tokens,
        "output_tokens": sums.output_tokens,
        "slot_seconds": decimal(Fraction(sums.slot_micros, 1_000_000)),
        "wall_seconds": decimal(Fraction(sums.wall_micros, 1_000_000)),
    }
    return fields if prices is None else {**fields, "cost": decimal(sums.cost(prices))}


def _csv(by: Sequence[str], groups: Groups, prices: Prices | None) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*by, *_fields(Sums(), prices)])
    writer.writerows([*key, *_fields(sums, prices).values()] for key, sums in groups.items())
    return text.getvalue().rstrip("\n")


def _json(by: Sequence[str], groups: Groups, prices: Prices | None) -> str:
    """Return JSON with seconds and money as text, because a number would be read as a float."""
    rows = [{**dict(zip(by, key, strict=True)), **_fields(sums, prices)} for key, sums in groups.items()]
    total = _fields(_total(groups.values()), prices)
    return json.dumps({"by": list(by), "rows": rows, "total": total}, default=str, indent=2, ensure_ascii=False)


def _table(by: Sequence[str], groups: Groups, prices: Prices | None) -> str:
    lines = [[*by, *(name.replace("_", " ") for name in _fields(Sums(), prices))]]
    lines += [[*key, *map(_number, _fields(sums, prices).values())] for key, sums in groups.items()]
    total = _fields(_total(groups.values()), prices)
    lines.append(["total", *[""] * (len(by) - 1), *map(_number, total.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < len(by) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _number(value: int | Decimal) -> str:
    return f"{value:,}"


def _timestamp(text: str) -> float:
    """Return the Unix seconds of a date or time; UTC by default."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a date such as 2026-11-30 or 2026-11-30T12:00+01:00, got {text!r}"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _price(text: str) -> Fraction:
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal("NaN")
    if not price.is_finite() or price < 0:
        raise argparse.ArgumentTypeError(f"must be a price such as 2.50, got {text!r}")
    return Fraction(price)


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(filter(None, map(str.strip, text.split(","))))
    unknown = [key for key in keys if key not in KEYS]
    if unknown or not keys or len(set(keys)) < len(keys):
        raise argparse.ArgumentTypeError(f"must be different keys of {', '.join(KEYS)}, got {text!r}")
    return keys
