"""State of the service as a whole, from those of its members."""

from __future__ import annotations

from collections.abc import Iterable

from app.engine_client.member import EngineState

# States of members, of which the first that any member has is the service's.
STATES = (
    EngineState.READY,
    EngineState.RESTARTING,
    EngineState.LOADING,
    EngineState.RETRYING,
    EngineState.FAILED,
    EngineState.STOPPED,
)


def service_state(members: Iterable[EngineState], *, has_served: bool) -> EngineState:
    """Return the state of a service whose members have these states: ready if any is.

    has_served: any member was ready before. Without members, others are expected.
    """
    return min(members, key=STATES.index, default=EngineState.RESTARTING if has_served else EngineState.LOADING)
