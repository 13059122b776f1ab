"""Transport: the channel to one engine, as a member sees it. Independent of processes, sockets and requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from engine.config import EngineConfig
from engine.ipc import FromEngine, ToEngine

# Handles a message; the iterator stops after each of its events.
MessageHandler = Callable[[FromEngine], Iterator[None]]


class Transport(Protocol):
    """One engine from its start, or from the connection to it, to the loss of its channel. It is used once.

    It is made with a handler of messages, and one of its loss, which is called once with the reason when nothing more
    will arrive: the engine could not be built, or it has ended and all its messages were handled, or it was given up.
    The latter is not called after `close`.
    """

    @property
    def shares_clock(self) -> bool:
        """Return whether the engine has the monotonic clock of this process, as on the same machine."""

    @property
    def replacement(self) -> str:
        """Return what a successor does after the loss of the engine, for the log."""

    @property
    def heartbeat_count(self) -> int:
        """Return the engine's progress, a number that grows only while its main thread goes on."""

    @property
    def exit_description(self) -> str:
        """Return how its process ended, for the log; empty if it has not ended or is not a child of this one."""

    async def start(self, config: EngineConfig) -> None:
        """Begin to load, or connect. Returns at once. Raises `OSError` if that fails."""

    def send(self, *messages: ToEngine) -> None:
        """Send messages in one write; do nothing without an engine."""

    def reject(self, why: str) -> bool:
        """Close the channel of an engine that has just reported that it is ready, and cannot be used.

        Returns whether the engine may be replaced by another process, so that it is tried again later.
        """

    def abandon(self, why: str) -> None:
        """Close the channel of a running but unusable engine and report its loss."""

    async def close(self, grace_seconds: float) -> None:
        """Close the channel and wait for up to `grace_seconds` until the engine has let go of its resources."""


TransportMaker = Callable[[MessageHandler, Callable[[str], None]], Transport]
