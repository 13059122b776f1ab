"""State of several engines together."""

from __future__ import annotations

import pytest

from app.engine_client.member import EngineState
from app.engine_client.service_state import STATES, service_state


@pytest.mark.parametrize("state", EngineState)
def test_a_service_is_ready_while_any_member_is(state: EngineState):
    """Otherwise it has the state from which requests are served soonest; no state is left out."""
    assert service_state([state, EngineState.READY], has_served=True) is EngineState.READY
    assert service_state([EngineState.STOPPED, state], has_served=True) is state
    assert set(STATES) == set(EngineState)


def test_a_service_without_engines_expects_some():
    """It is loading before the first one, and restarting afterwards."""
    assert service_state([], has_served=False) is EngineState.LOADING
    assert service_state([], has_served=True) is EngineState.RESTARTING
