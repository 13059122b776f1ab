"""Table of clients in docs/protocols.md, written by `make clients`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.trial import Outcome

DOCUMENT = Path(__file__).parents[2] / "docs/protocols.md"
BEGIN, END = "<!-- clients: written by `make clients` -->", "<!-- end of clients -->"
FEATURES = ("chat", "stream", "turns", "tools", "structured", "types", "errors", "cancel", "resume", "stored")
COLUMNS = ("client", "version", *FEATURES)


def updated(text: str, outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return `text` with the rows of the clients in `outcomes`; other rows of its table are kept.

    outcomes: by name of the client. Raises `ValueError` if the text has no table.
    """
    before, begin, rest = text.partition(BEGIN)
    old, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{DOCUMENT.name} has no table of clients")
    chosen = [client for client in CLIENTS if client.name in outcomes]
    rows = _rows(old) | {client.name: _row(client, outcomes[client.name]) for client in chosen}
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'--|' * len(COLUMNS)}"]
    for cells in (rows[client.name] for client in CLIENTS if client.name in rows):
        lines.append(f"| {' | '.join(cells.get(column, '') for column in COLUMNS)} |")
    return "\n".join((f"{before}{BEGIN}\n", *lines, f"\n{END}{after}"))


def _row(client: Client, outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the cells of a client. A feature that its driver does not try is left empty."""
    cells = {outcome.feature: _cell(outcome) for outcome in outcomes}
    return {"client": client.name, "version": client.version} | cells


def _cell(outcome: Outcome) -> str:
    if not outcome.ok:
        return "no"
    return "limit" if outcome.limit else "yes"


def _rows(table: str) -> dict[str, dict[str, str]]:
    """Return the cells of a table, by name of the client."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    return {cells[0]: dict(zip(lines[0], cells, strict=True)) for cells in lines[2:]}
