"""The number of engines that are wanted: its rule, its memory, and its metrics."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client import CollectorRegistry

from app.engine_client.client import EngineClient
from app.engine_client.in_flight import InFlight
from app.engine_client.member_counts import ReadyMember
from app.observe.replicas_wanted import (
    DOWN_SECONDS,
    MAX_BATCH_WAIT_SECONDS,
    MAX_WAIT_SECONDS,
    MIN_BATCH_WAIT_SECONDS,
    RECENT_SECONDS,
    ReplicasWanted,
    ReplicasWantedCollector,
    ServiceDemand,
    engines_for,
    max_wait_seconds,
    measure_demand,
    measure_waits,
)
from engine.types import Phase, Request, SamplingParams, ServiceClass, StatusEvent, WaitReason
from tests.app.engine_client.test_client import CONFIG, fake_engine, follow, request
from tests.app.observe.test_metrics import value
from tests.app.routes.test_http import make, ready
from tests.limits import HANG_SECONDS
from tests.profiles import examples

SLOTS = 10
CALM = ServiceDemand(engines=2, slots=2 * SLOTS, demand=3)


def request_of(service_class: ServiceClass, deadline: float | None = None) -> Request:
    return Request(
        id="r", prompt=(1,), sampling=SamplingParams(max_tokens=9), service_class=service_class, deadline=deadline
    )


def wanted_after(*samples: tuple[float, ServiceDemand]) -> int | None:
    memory = ReplicasWanted()
    for now, sample in samples:
        memory.observe(sample, now)
    return memory.number


def test_people_take_at_most_seven_tenths_of_the_slots():
    """One choice more needs another engine, and no demand needs one engine."""
    assert [engines_for(demand, SLOTS) for demand in (0, 1, 7, 8, 14, 15)] == [1, 1, 1, 2, 2, 3]


@given(demand=st.integers(0, 10**6), slots=st.integers(1, 1024), fewer=st.integers(0, 1000))
@settings(max_examples=examples(300))
def test_fewer_engines_would_not_do(demand, slots, fewer):
    """The number is the least that suffices, and it does not fall when demand grows."""
    engines = engines_for(demand, slots)
    assert 10 * demand <= 7 * engines * slots or engines == 1 >= demand / slots
    assert engines == 1 or 10 * demand > 7 * (engines - 1) * slots
    assert engines_for(max(0, demand - fewer), slots) <= engines


class Memoryless:
    """The rule, from all samples so far."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, ServiceDemand]] = []

    def wanted_at(self, at: float) -> int | None:
        sample = next(sample for now, sample in reversed(self.samples) if now <= at)
        if not sample.engines:
            return None
        waited = [
            each.engines + 1 for now, each in self.samples if at - RECENT_SECONDS < now <= at and each.has_waited_long
        ]
        return max(1, math.ceil(10 * sample.demand / (7 * SLOTS)), *waited)

    def number(self, at: float) -> int | None:
        """Return the largest number of the last five minutes in which an engine was ready."""
        known = [(now, wanted) for now, _ in self.samples if (wanted := self.wanted_at(now)) is not None]
        if not known:
            return None
        last = known[-1][0]
        return max(wanted for now, wanted in known if now > last - DOWN_SECONDS)


@given(
    st.lists(
        st.tuples(st.sampled_from((0.5, 7.0, 29.5, 60.0, 299.0, 301.0)), st.integers(0, 4), st.integers(0, 60),
                  st.booleans()),
        min_size=1, max_size=20,
    )
)  # fmt: skip
@settings(max_examples=examples(300))
def test_the_number_is_the_largest_of_the_last_five_minutes(steps):
    """It rises at once, falls after five minutes in which less was wanted, and stays while no engine is ready."""
    memory, rule, now = ReplicasWanted(), Memoryless(), 1000.0
    for seconds, engines, demand, has_waited in steps:
        now += seconds
        sample = ServiceDemand(engines, engines * SLOTS, demand, has_waited_long=has_waited)
        memory.observe(sample, now)
        rule.samples.append((now, sample))
        assert memory.number == rule.number(now)


def test_a_long_wait_wants_one_engine_more_than_there_were():
    """An engine that is added meanwhile counts: the wait does not want yet another one."""
    late = replace(CALM, has_waited_long=True)
    assert wanted_after((0, CALM)) == 1
    assert wanted_after((0, late)) == 3
    assert wanted_after((0, late), (10, replace(CALM, engines=3, slots=3 * SLOTS))) == 3
    assert wanted_after((0, late), (RECENT_SECONDS + DOWN_SECONDS - 1, CALM)) == 1, "no sample in between"
    at = RECENT_SECONDS - 0.5
    assert wanted_after((0, late), (at, CALM), (at + DOWN_SECONDS - 1, CALM)) == 3
    assert wanted_after((0, late), (at, CALM), (at + DOWN_SECONDS, CALM)) == 1


def test_nothing_is_learnt_without_an_engine():
    """Engines that fail to start are not taken away, and before the first one no number is known."""
    none = ServiceDemand(0, 0, 0)
    assert wanted_after((0, none)) is None
    assert wanted_after((0, replace(CALM, demand=20)), (10 * DOWN_SECONDS, none)) == 3


def test_only_a_batch_request_may_wait_for_minutes():
    """With a deadline, for half of its time, but never for less than a minute."""
    assert max_wait_seconds(request_of(ServiceClass.INTERACTIVE), 0) == MAX_WAIT_SECONDS
    assert max_wait_seconds(request_of(ServiceClass.STANDARD, deadline=1e6), 0) == MAX_WAIT_SECONDS
    assert max_wait_seconds(request_of(ServiceClass.BATCH), 0) == MAX_BATCH_WAIT_SECONDS
    limits = [max_wait_seconds(request_of(ServiceClass.BATCH, deadline=100 + each), 100) for each in (1, 400, 1e9)]
    assert limits == [MIN_BATCH_WAIT_SECONDS, 200, MAX_BATCH_WAIT_SECONDS]


def test_waits_are_measured_by_class():
    """The oldest request of each class counts, and none has waited for long before its limit."""
    batch, person = request_of(ServiceClass.BATCH), request_of(ServiceClass.STANDARD)
    assert measure_waits([], 5) == ((0, 0, 0), False)
    assert measure_waits([(batch, 1), (batch, 0), (person, 4.5)], 5) == ((0, 0.5, 5), False)
    assert measure_waits([(person, 3.9)], 5)[1] and measure_waits([(batch, 0)], MAX_BATCH_WAIT_SECONDS + 1)[1]


def test_a_request_waits_for_a_slot_unless_for_a_grammar_or_an_engine():
    """Waits that another engine would not shorten are left out, and a running request does not wait."""
    in_flight = InFlight(has_several=False, clock=lambda: 7.0)
    in_flight.add(request_of(ServiceClass.STANDARD), lambda event: None)
    in_flight.requests_to_send([ReadyMember(0, SLOTS, None)])

    def since_after(phase: Phase, cause: WaitReason | None) -> list[float]:
        in_flight.handle(StatusEvent("r", 0, phase, cause=cause, monotonic_time=5.0))
        return [since for _, since in in_flight.slot_waits()]

    assert list(in_flight.slot_waits()) == []
    assert since_after(Phase.QUEUED, WaitReason.SLOTS) == [5.0]
    assert since_after(Phase.QUEUED, WaitReason.GRAMMAR) == []
    assert since_after(Phase.QUEUED, WaitReason.ORDER) == [5.0]
    assert since_after(Phase.PREFILL, None) == []
    assert since_after(Phase.PAUSED, WaitReason.SLOTS) == [5.0]
    in_flight.lose_engine()
    assert list(in_flight.slot_waits()) == [], "it waits for an engine"


async def test_people_count_wherever_they_are_and_batch_work_does_not():
    """The demand is that of the engine's last report."""
    client = EngineClient(CONFIG, fake_engine)
    collector = ReplicasWantedCollector(client, CollectorRegistry(), "fake")
    assert collector.sample() == ServiceDemand(0, 0, 0)
    await client.start()
    await client.ready()
    seen: list[int] = []

    def look(event) -> None:
        seen.append(collector.sample().demand)

    await follow(client, structs.replace(request("b", 30), service_class=ServiceClass.BATCH), look)
    assert set(seen) == {0}
    await follow(client, request("p", 30), look)
    assert max(seen) == 1
    await client.stop()


def test_people_count_in_each_state_and_only_on_ready_engines():
    """Those that run, wait, are paused, or have no engine yet; an engine that ends has no slots."""
    report = SimpleNamespace(running=(1, 2, 100), waiting=(4, 8, 100), paused=(16, 32, 100))
    ready_member = SimpleNamespace(is_ready=True, info=SimpleNamespace(max_num_seqs=SLOTS), load=report)
    unused = SimpleNamespace(is_ready=True, info=ready_member.info, load=None)
    ending = SimpleNamespace(is_ready=False, info=ready_member.info, load=report)
    client = SimpleNamespace(
        members=(ready_member, unused, ending),
        num_waiting={ServiceClass.INTERACTIVE: 64, ServiceClass.STANDARD: 128, ServiceClass.BATCH: 100}.__getitem__,
        slot_waits=lambda: [(request_of(ServiceClass.STANDARD), 3.0)],
    )
    assert measure_demand(client, 5.0) == ServiceDemand(2, 2 * SLOTS, 255, (0, 2, 0), has_waited_long=True)


async def test_samples_are_taken_without_a_scrape(monkeypatch):
    """A wait between two scrapes counts too; nothing is sampled after the server has stopped."""
    monkeypatch.setattr("app.observe.replicas_wanted.SAMPLE_SECONDS", 0.0)
    moments: list[float] = []
    again = asyncio.Event()

    def clock() -> float:
        moments.append(float(len(moments)))
        if len(moments) == 3:
            again.set()
        return moments[-1]

    collector = ReplicasWantedCollector(EngineClient(CONFIG, fake_engine), CollectorRegistry(), "fake", clock)
    collector.start()
    async with asyncio.timeout(HANG_SECONDS):
        await again.wait()
    collector.stop()
    sampled = len(moments)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(moments) == sampled


def test_the_number_and_its_parts_are_metrics():
    """A calm server wants one engine."""
    with make() as client:
        text = ready(client).get("/metrics").text
    assert value(text, "carousel:replicas_wanted") == 1
    assert value(text, "carousel:people_demand") == 0
    assert value(text, "carousel:ready_slots") == CONFIG.max_num_seqs
    assert {line.split('"')[3] for line in text.splitlines() if line.startswith("carousel:longest_wait_seconds{")} == {
        service_class.label for service_class in ServiceClass
    }
