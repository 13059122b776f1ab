"""Refused keys: a count, and a delay of the answer that grows with each wrong key from one network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

FREE_ATTEMPTS = 5  # without a delay: a key may be mistyped, or replaced while its clients run
FIRST_DELAY_SECONDS = 0.1  # doubled with each further attempt
MAX_DELAY_SECONDS = 5.0
FORGET_SECONDS = 300.0  # after the last attempt
MAX_NETWORKS = 4096
MAX_ATTEMPTS = 1_000  # restored ones, of which the delay needs a dozen


class RefusedKeys:
    """Refused keys by network. A correct key is never delayed, so no client can lock out others at its address."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.total = 0
        self._clock = clock
        self.on_change: Callable[[str], None] = lambda _: None  # called with the network
        self._attempts: OrderedDict[str, tuple[int, float]] = OrderedDict()  # with the time of the last one

    def count(self, network: str) -> float:
        """Count a wrong key. Return the seconds by which the answer is to be delayed.

        network: as `client_network` returns it; loopback is one network as well.
        """
        self.total += 1
        now = self._clock()
        attempts, last = self._attempts.pop(network, (0, now))
        attempts = 1 if now - last > FORGET_SECONDS else attempts + 1
        self._attempts[network] = attempts, now
        self.on_change(network)
        if len(self._attempts) > MAX_NETWORKS:
            self.on_change(self._attempts.popitem(last=False)[0])
        doublings = min(attempts - FREE_ATTEMPTS - 1, 16)
        return min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**doublings) if doublings >= 0 else 0.0

    def attempts(self, network: str) -> tuple[float, tuple[float]] | None:
        """Return the seconds since the last attempt of a network, and its attempts; None if it is forgotten."""
        if (found := self._attempts.get(network)) is None:
            return None
        attempts, last = found
        return max(0.0, self._clock() - last), (float(attempts),)

    def restore(self, found: Iterable[tuple[str, float, tuple[float, ...]]]) -> None:
        """Restore the attempts of an earlier process, the newest first: networks with ages in seconds and attempts."""
        now = self._clock()
        for network, age, (attempts,) in found:
            own, last = self._attempts.get(network, (0, now - age))
            self._attempts[network] = int(min(own + attempts, MAX_ATTEMPTS)), max(last, now - age)
            if not own:
                self._attempts.move_to_end(network, last=False)
        while len(self._attempts) > MAX_NETWORKS:
            self._attempts.popitem(last=False)
