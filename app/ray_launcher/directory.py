"""Directory: the actor that knows which engines and API processes there are, and their token. Independent of Ray."""

from __future__ import annotations

import time
from collections.abc import Callable

NAMESPACE = "carousel"  # of all actors in the Ray cluster

REPORT_SECONDS = 2.0  # between two reports of a process to the directory
MAX_SILENCE_SECONDS = 10.0  # after which a process without a report is not listed any more

ENGINE, API = "engine", "api"  # kinds of processes


class Directory:
    """Addresses of the processes that have reported recently.

    A restarted directory has its token by the arguments of its actor, and the processes by their next reports.
    """

    def __init__(self, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._clock = clock
        self._owner = ""  # fleet that starts and ends processes; empty: none has claimed it since the actor started
        self._entries: dict[str, tuple[str, str, float]] = {}  # by actor: kind, address, and time of the last report

    def token(self) -> str:
        """Return the token that engines and API processes share."""
        return self._token

    def claim(self, fleet: str) -> None:
        """Let a fleet start and end processes from now on, and no other."""
        self._owner = fleet

    def owner(self) -> str:
        """Return the fleet that starts and ends processes; empty if it is not known after a restart."""
        return self._owner

    def report(self, kind: str, name: str, address: str) -> None:
        """Record that a process serves at an address. name: of its actor."""
        self._entries[name] = kind, address, self._clock()

    def remove(self, name: str) -> None:
        """Forget a process that ends."""
        self._entries.pop(name, None)

    def addresses(self, kind: str) -> dict[str, str]:
        """Return the addresses of the present processes of a kind, by actor."""
        since = self._clock() - MAX_SILENCE_SECONDS
        self._entries = {name: entry for name, entry in self._entries.items() if entry[2] >= since}
        return {name: address for name, (each, address, _) in self._entries.items() if each == kind}
