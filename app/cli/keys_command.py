"""`carousel keys`: add, list and revoke the API keys of a keys file."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

from app.admission.keys_file import parse_keys, read_text
from app.admission.tenant_tables import LIMIT_FIELDS, TenantTable
from app.admission.tenants import ALL_TIERS
from app.cli.keys_editor import add_key, revoke_key

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DIGEST_DIGITS = 12  # of a digest, in the list
# Flags of `add`, named like the fields of a table.
LIMIT_FLAGS: dict[str, tuple[type, str]] = {
    "weight": (float, "share of a class, against 1 for other tenants"),
    "deadline_ms": (int, "deadline of requests without one, in milliseconds"),
    "max_queue": (int, "maximum waiting requests"),
    "max_queue_tokens": (int, "maximum waiting prompt tokens"),
    "requests_per_minute": (int, "requests per minute; 0: no limit"),
    "tokens_per_minute": (int, "tokens of prompts and answers per minute; 0: no limit"),
    "max_concurrency": (int, "maximum choices that wait or run; 0: no limit"),
    "max_websockets": (int, "maximum open WebSockets; 0: no limit"),
    "websocket_idle_timeout": (float, "seconds after which an idle WebSocket is closed; inf: never"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = commands.add_parser("add", help="create a key, print it once and store its digest")
    add.add_argument("name", type=_name, help="name of the tenant, in logs and metrics")
    add.add_argument("--replace", action="store_true", help="give an existing tenant a new key; the old one is revoked")
    add.add_argument("--tiers", type=_tiers, help=f"service tiers, separated by commas: {', '.join(ALL_TIERS)}")
    for field, (kind, text) in LIMIT_FLAGS.items():
        add.add_argument(f"--{field.replace('_', '-')}", type=kind, metavar=kind.__name__.upper(), help=text)
    listing = commands.add_parser("list", help="print names, dates, first digits of digests, and limits")
    listing.add_argument("--json", action="store_true", help="print a JSON array")
    revoke = commands.add_parser("revoke", help="remove a key")
    revoke.add_argument("name", help="name of the tenant")
    for command in (add, listing, revoke):
        command.add_argument(
            "--keys-file",
            type=Path,
            default=default_path(),
            metavar="PATH",
            help="default: CAROUSEL_KEYS_FILE, else keys.toml in the user's configuration folder (%(default)s)",
        )


def default_path() -> Path:
    """Return the keys file to edit if no option names one. A server reads it only if an option names it."""
    if given := os.environ.get("CAROUSEL_KEYS_FILE"):
        return Path(given)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "carousel" / "keys.toml"


def run(options: argparse.Namespace) -> tuple[str, str]:
    """Execute the subcommand and return the texts for standard output and standard error. Only a new key goes to
    standard output, so that a shell can store it in a variable. Raises `KeysFileError`.
    """
    path: Path = options.keys_file
    if options.action == "list":
        tables = parse_keys(read_text(path), path)
        return _json(tables) if options.json else _table(tables), ""
    if options.action == "revoke":
        revoke_key(path, options.name)
        return "", f"The key of {options.name} is removed from {path}."
    limits = {field: value for field in LIMIT_FIELDS if (value := getattr(options, field)) is not None}
    key = add_key(path, options.name, limits, replace=options.replace)
    advice = f"`carousel serve --keys-file {path}` accepts it, and a running one does so within seconds"
    return key, f"This key of {options.name} is shown only now; {path} has its digest. {advice}."


def _name(given: str) -> str:
    if not NAME_PATTERN.fullmatch(given):
        allowed = "1 to 64 ASCII letters, digits, dots, hyphens and underscores, the first a letter or digit"
        raise argparse.ArgumentTypeError(f"the name must have {allowed}, got {given!r}")
    return given


def _tiers(given: str) -> list[str]:
    return [tier.strip() for tier in given.split(",")]


def _entry(name: str, table: TenantTable) -> dict[str, Any]:
    plain = TenantTable()
    limits = {f: getattr(table, f) for f in LIMIT_FIELDS if getattr(table, f) != getattr(plain, f)}
    created = table.created.isoformat() if table.created else None
    return {"name": name, "created": created, "key_sha256": table.digest, "limits": limits}


def _json(tables: dict[str, TenantTable]) -> str:
    return json.dumps([_entry(name, table) for name, table in tables.items()], indent=2)


def _table(tables: dict[str, TenantTable]) -> str:
    rows = [("name", "created", "digest", "limits")]
    for entry in (_entry(name, table) for name, table in tables.items()):
        limits = ", ".join(f"{field} {_shown(value)}" for field, value in entry["limits"].items())
        rows.append((entry["name"], entry["created"] or "-", entry["key_sha256"][:DIGEST_DIGITS], limits or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    cells = [[cell.ljust(width) for cell, width in zip(row, (*widths, 0), strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cells)


def _shown(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)
