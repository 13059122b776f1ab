"""Status of a request as clients receive it."""

from __future__ import annotations

from typing import Any

from engine.types import StatusEvent


class EngineLossEvent(StatusEvent, frozen=True, array_like=True, kw_only=True, tag="engine loss"):
    """Loss of the engine that had the request, one of several; and again, with `next_engine`, when another one gets it.

    Engines are numbered from 0. was_computing: the request had a slot, or may have had one. was_drained: the engine was
    stopped by its operator.
    """

    lost_engine: int
    was_computing: bool
    was_drained: bool = False
    next_engine: int | None = None


def status_view(status: StatusEvent) -> dict[str, Any]:
    """Return a request's status for clients. It reveals nothing about other tenants."""
    view: dict[str, Any] = {"state": status.state}
    if status.position:
        view["position"] = status.position
    if status.cause is not None:
        view["cause"] = status.cause.value
    if status.state == "paused":
        view["by"] = status.preempted_by.label if status.preempted_by is not None else None
        view["mechanism"] = status.mechanism.value if status.mechanism is not None else None
    return view
