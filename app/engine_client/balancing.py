"""Moves of requests from engines where they wait to engines with free slots. Pure functions of loads and requests.

A request is bound to an engine when it is sent there. Afterwards another engine may become free earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.engine_client.in_flight_request import InFlightRequest
from app.engine_client.router import MemberLoad

MIN_WAIT_SECONDS = 0.5  # for which a request waits in an engine before it moves: most waits are shorter than a prefill


def requests_to_move(
    requests: Iterable[InFlightRequest], loads: Sequence[MemberLoad], now: float
) -> list[InFlightRequest]:
    """Return waiting requests of engines without free slots, as many as there are free slots elsewhere.

    People go first, then those that have waited longest. loads: of members that take requests.
    """
    free = sum(max(0, load.slots - sum(load.demand)) for load in loads)
    if not free or not any(load.waiting for load in loads):
        return []
    full = {load.index for load in loads if load.waiting}
    waiting = [each for each in requests if each.member in full and each.can_move_at(now - MIN_WAIT_SECONDS)]
    waiting.sort(key=lambda each: (each.request.service_class, each.serial))
    moved: list[InFlightRequest] = []
    for each in waiting:
        if (free := free - len(each.output)) < 0:
            break
        moved.append(each)
    return moved
