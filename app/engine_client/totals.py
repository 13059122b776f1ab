"""State and load of the service as a whole, from those of its members. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import astuple

from app.engine_client.member import EngineState
from engine.types import Counters, EngineLoad, PageCounts

# States of members, of which the first that any member has is the service's.
STATES = (
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.LOADING,
    EngineState.RETRYING,
    EngineState.FAILED,
    EngineState.STOPPED,
)


def service_state(members: Iterable[EngineState]) -> EngineState:
    """Return the state of a service whose members have these states: ready if any is."""
    return min(members, key=STATES.index)


def total_load(loads: Sequence[EngineLoad]) -> EngineLoad | None:
    """Return the load of several engines; None without any.

    Numbers of requests, pages, tokens and rows, and running totals are added. Steps of different engines are computed
    at the same time: the time of a step and its target are the greatest of all.
    """
    if len(loads) < 2:
        return loads[0] if loads else None
    return EngineLoad(
        running=_by_class(load.running for load in loads),
        waiting=_by_class(load.waiting for load in loads),
        paused=_by_class(load.paused for load in loads),
        pages=PageCounts(*map(sum, zip(*(astuple(load.pages) for load in loads), strict=True))),
        counters=_total_counters([load.counters for load in loads]),
        decode_rows=sum(load.decode_rows for load in loads),
        prefill_tokens=sum(load.prefill_tokens for load in loads),
        step_seconds=max(load.step_seconds for load in loads),
        step_target=max(load.step_target for load in loads),
        busy_seconds=sum(load.busy_seconds for load in loads),
    )


def _by_class(counts: Iterable[tuple[int, int, int]]) -> tuple[int, int, int]:
    first, second, third = map(sum, zip(*counts, strict=True))
    return first, second, third


def _total_counters(counters: Sequence[Counters]) -> Counters:
    by_class = zip(*(one.preemptions for one in counters), strict=True)
    preemptions = tuple(map(_by_class, by_class))
    numbers = {
        name: sum(getattr(one, name) for one in counters)
        for name in Counters.__struct_fields__
        if name != "preemptions"
    }
    return Counters(**numbers, preemptions=preemptions)
