"""State and load of several engines together."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from app.engine_client.member import EngineState
from app.engine_client.totals import STATES, service_state, total_load
from engine.types import Counters, EngineLoad, PageCounts


def load(base: int) -> EngineLoad:
    """Return a load of which no two numbers are the same."""
    numbers = itertools.count(base)

    def three() -> tuple[int, int, int]:
        return next(numbers), next(numbers), next(numbers)

    pages = PageCounts(*(next(numbers) for _ in PageCounts.__struct_fields__))
    scalars = [name for name in Counters.__struct_fields__ if name != "preemptions"]
    counters = Counters(**{name: next(numbers) for name in scalars}, preemptions=(three(), three(), three()))
    return EngineLoad(three(), three(), three(), pages, counters, *(next(numbers) for _ in range(5)))


def flat(value: object) -> list[float]:
    return list(map(float, msgspec.json.encode(value).decode().replace("[", "").replace("]", "").split(",")))


def test_loads_are_added_field_by_field_apart_from_times_of_a_step():
    """A field that is added to a struct later is part of the sum, or this test fails."""
    total = total_load([load(100), load(1000), load(5000)])
    summed = [sum(values) for values in zip(*(flat(load(base)) for base in (100, 1000, 5000)), strict=True)]
    assert (total.step_seconds, total.step_target) == (load(5000).step_seconds, load(5000).step_target)
    times = [EngineLoad.__struct_fields__.index(name) for name in ("step_seconds", "step_target")]
    from_end = [index - len(EngineLoad.__struct_fields__) for index in times]
    for index in from_end:
        summed[index] = flat(load(5000))[index]
    assert flat(total) == summed


def test_the_load_of_one_engine_is_its_own_and_of_none_is_none():
    """Nothing is computed for a single engine."""
    only = load(1)
    assert total_load([only]) is only and total_load([]) is None


@pytest.mark.parametrize("state", EngineState)
def test_a_service_is_ready_while_any_member_is(state: EngineState):
    """Otherwise it has the state from which requests are served soonest; no state is left out."""
    assert service_state([state, EngineState.READY]) is EngineState.READY
    assert service_state([EngineState.STOPPED, state]) is state
    assert set(STATES) == set(EngineState)
