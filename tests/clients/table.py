"""Table of clients in docs/protocols.md, written by `make clients`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.trial import Outcome

DOCUMENT = Path(__file__).parents[2] / "docs/protocols.md"
BEGIN, END = "<!-- clients: written by `make clients` -->", "<!-- end of clients -->"
FEATURES = ("chat", "stream", "tools", "structured", "errors", "cancel", "resume")


def row(client: Client, outcomes: Sequence[Outcome]) -> str:
    """Return the row of a client. A feature that its driver does not try is left empty."""
    cells = {outcome.feature: "yes" if outcome.ok else "no" for outcome in outcomes}
    return f"| {client.name} | {client.version} | " + " | ".join(cells.get(name, "") for name in FEATURES) + " |"


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the table of all clients. outcomes: by name of the client."""
    head = f"| client | version | {' | '.join(FEATURES)} |"
    rows = [row(client, outcomes[client.name]) for client in CLIENTS]
    return "\n".join([head, f"|{'--|' * (len(FEATURES) + 2)}", *rows])


def with_table(text: str, lines: str) -> str:
    """Return `text` with `lines` between the two markers. Raises `ValueError` if it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{DOCUMENT.name} has no table of clients")
    return f"{before}{BEGIN}\n\n{lines}\n\n{END}{after}"
