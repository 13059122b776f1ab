"""Try clients of other projects against servers of this checkout: python -m tests.clients [NAME ...]

Names are those of the table in docs/protocols.md, or their beginnings. Without a name all clients are tried. Their rows
of the table are written if all could be installed. Exits with status 1 if a client cannot be installed or a feature
fails.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.clients.catalogue import CLIENTS, Client
from tests.clients.environments import DEFAULT_HOME, InstallationFailed
from tests.clients.table import DOCUMENT, updated
from tests.clients.trial import Outcome, Servers, running_servers, try_client

INSTALLATION = "installation"


def main() -> int:
    """Try clients and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="folder of the environments: %(default)s")
    options = parser.parse_args()
    try:
        chosen = select_clients(options.names)
    except ValueError as error:
        parser.error(str(error))
    with running_servers() as servers:
        outcomes = {client.name: _report(options.home, client, servers) for client in chosen}
    if not _lacks_client(outcomes):
        DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8"), outcomes), encoding="utf-8")
    return 0 if all(outcome.ok for client in outcomes.values() for outcome in client) else 1


def select_clients(names: Sequence[str]) -> list[Client]:
    """Return the clients with a name that begins with one of `names`; without names all. Raises `ValueError`."""
    for name in names:
        if not any(client.name.startswith(name) for client in CLIENTS):
            known = "; ".join(client.name for client in CLIENTS)
            raise ValueError(f"NAME must be the beginning of a client's name, got {name!r}; clients are: {known}")
    return [client for client in CLIENTS if not names or client.name.startswith(tuple(names))]


def _lacks_client(outcomes: Mapping[str, Sequence[Outcome]]) -> bool:
    return any(outcome.feature == INSTALLATION for client in outcomes.values() for outcome in client)


def _report(home: Path, client: Client, servers: Servers) -> list[Outcome]:
    """Try a client, and print the outcome of each feature."""
    print(f"{client.name} {client.version}", flush=True)
    try:
        outcomes = try_client(home, client, servers)
    except InstallationFailed as error:
        outcomes = [Outcome(INSTALLATION, False, str(error))]
    for outcome in outcomes:
        print(f"  {outcome.feature}: {_described(outcome)}", flush=True)
    return outcomes


def _described(outcome: Outcome) -> str:
    if not outcome.ok:
        return f"FAILED: {outcome.detail}"
    return "known limit" if outcome.limit else "ok"


if __name__ == "__main__":
    sys.exit(main())
