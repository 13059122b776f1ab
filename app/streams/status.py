"""Status of a request as clients receive it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from engine.types import StatusEvent, WaitReason


class MoveReason(Enum):
    """Why a request has left its engine."""

    DIED = "died"
    DRAINED = "drained"  # its operator stopped it
    BUSY = "busy"  # it had no slot for the request, and another engine had one


class EngineMoveEvent(StatusEvent, frozen=True, array_like=True, kw_only=True, tag="engine move"):
    """A request has left its engine, one of several; and again, with `next_engine`, when another one gets it.

    Engines are numbered from 0. was_computing: the request had a slot, or may have had one.
    """

    left_engine: int
    reason: MoveReason
    was_computing: bool
    next_engine: int | None = None


def status_view(status: StatusEvent) -> dict[str, Any]:
    """Return a request's status for clients. It reveals nothing about other tenants."""
    view: dict[str, Any] = {"state": status.state}
    if status.position:
        view["position"] = status.position
    if status.cause is not None:
        view["cause"] = status.cause.value
    if status.state == "paused" and status.cause is not WaitReason.CLIENT:
        view["by"] = status.preempted_by.label if status.preempted_by is not None else None
        view["mechanism"] = status.mechanism.value if status.mechanism is not None else None
    return view
