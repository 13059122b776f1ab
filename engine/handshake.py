"""Admission of connections over TCP by their first frame, and the log of refusals. Independent of sockets."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable

from engine.ipc import PROTOCOL_VERSION, Hello

log = logging.getLogger("carousel.engine")

REFUSAL_LOG_SECONDS = 10.0  # between two log lines about refused connections

WRONG_TOKEN = "its token is not the engine's"  # all that a sender without the token learns


def reason_to_refuse(hello: Hello, token: str, fingerprint: str) -> str:
    """Return why a connection is not admitted to an engine with this token and fingerprint; empty if it is.

    The token is compared first, so that without it nothing else can be learnt.
    """
    if not hmac.compare_digest(hello.token.encode(), token.encode()):
        return WRONG_TOKEN
    if hello.version != PROTOCOL_VERSION:
        return f"the engine has version {PROTOCOL_VERSION} of the protocol, and the API process version {hello.version}"
    if hello.fingerprint not in ("", fingerprint):
        return (
            f"the engine serves a model with fingerprint {fingerprint}, and the API process expects "
            f"{hello.fingerprint}; weights, data types and kernels of all engines must be the same"
        )
    return ""


class RefusalLog:
    """Log of refused connections, at most one line in `REFUSAL_LOG_SECONDS`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = 0.0
        self._unreported = 0

    def note(self, peer: str, reason: str) -> None:
        """Log a refusal, or count it for the next line."""
        now = self._clock()
        if now < self._next_at:
            self._unreported += 1
            return
        since = f"; {self._unreported} more since the last such line" if self._unreported else ""
        log.warning("a connection from %s was refused: %s%s", peer, reason, since)
        self._next_at, self._unreported = now + REFUSAL_LOG_SECONDS, 0
