"""ServiceManager: tells systemd, or another manager with its protocol, how the start and the stop go (sd_notify(3))."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import MutableMapping

REPORT_SECONDS = 5.0  # between two reports of a start
EXTRA_SECONDS = 60.0  # in which the next step of a start or of a drain is reported


class ServiceManager:
    """Manager at the address in $NOTIFY_SOCKET; without one, every call does nothing."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Removes the variable, which is not for child processes."""
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._report_at = 0.0

    def starting(self, status: str) -> None:
        """Report the progress of a start from time to time; it may then take `EXTRA_SECONDS` more."""
        if time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_SECONDS
        self._send(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={EXTRA_SECONDS * 1e6:.0f}")

    def ready(self, status: str) -> None:
        """Report that requests are served."""
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, seconds: float) -> None:
        """Report that running answers are finished, for `seconds` at most."""
        extra = f"EXTEND_TIMEOUT_USEC={(seconds + EXTRA_SECONDS) * 1e6:.0f}"
        self._send("STOPPING=1", "STATUS=Finishing the running answers", extra)

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.sendto("\n".join(assignments).encode(), self._address)
