"""A step is decided as late as the device allows (docs/decisions/0021), on a simulated clock."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean

import pytest

from benchmarks.scheduling.device import EagerEngine
from engine.config import EngineConfig
from engine.engine import Engine
from engine.launch_lead import INITIAL_LEAD_SECONDS, MIN_LEAD_SECONDS, LaunchLead
from engine.scheduling.costs import Costs
from engine.simulation import Clock, StepCost, simulate, simulated_engine
from engine.types import Event, Request, SamplingParams, ServiceClass, TokenEvent

AHEAD = StepCost(step=0.001, decode=0.0001, prompt=0.00001, chunk=0.001, host=0.0005)
SLOTS = 32  # decoding in a step of 4.2 ms


def make_request(name: str, number: int, tokens: int, service_class: ServiceClass) -> Request:
    sampling = SamplingParams(max_tokens=tokens)
    return Request(id=name, prompt=(number,) * 9, sampling=sampling, service_class=service_class)


def serve(cost: StepCost, num_interactive: int, **more) -> tuple[list[float], float, Engine]:
    """Serve bulk work that fills every slot and as many waiting requests, and interactive requests, one at a time.

    Return each interactive request's time to first token, the time of the last token, and the engine.
    """
    rng = random.Random(1)
    arrivals = [(0.0, make_request(f"b{number}", number, 400, ServiceClass.BATCH)) for number in range(2 * SLOTS)]
    for number in range(num_interactive):
        at = 1.0 + number * 0.03 + rng.uniform(0.0, 0.02)
        arrivals.append((at, make_request(f"p{number}", 1000 + number, 2, ServiceClass.INTERACTIVE)))
    arrival_times = {request.id: at for at, request in arrivals}
    first: dict[str, float] = {}
    last = 0.0

    def collect(events: list[Event], now: float) -> None:
        nonlocal last
        for event in events:
            if isinstance(event, TokenEvent):
                first.setdefault(event.request_id, now)
                last = now

    config = EngineConfig(model="none", max_num_seqs=SLOTS).validate()
    engine = simulate(config, cost, arrivals, collect, num_pages=64 * SLOTS, host_pages=0, **more)
    return [at - arrival_times[name] for name, at in first.items() if name[0] == "p"], last, engine


def test_a_request_that_arrives_during_a_step_joins_the_next_one():
    """Its first token comes sooner than with immediate launches, on average by at least half a step of bulk work."""
    late, _, _ = serve(AHEAD, num_interactive=40)
    soon, _, _ = serve(AHEAD, num_interactive=40, engine_factory=EagerEngine)
    assert len(late) == len(soon) == 40
    assert mean(soon) - mean(late) > 0.5 * (AHEAD.step + AHEAD.decode * SLOTS)


@pytest.mark.parametrize("host_prompts", [0.0, 0.003])
def test_a_late_launch_hardly_idles_the_device(host_prompts: float):
    """The whole work takes at most 1 % longer, even if prompts take long to launch: launches must end before the
    current step does, or its tokens would be late."""
    cost = replace(AHEAD, host_prompts=host_prompts)
    (_, late, _), (_, soon, _) = (
        serve(cost, num_interactive=60, engine_factory=make) for make in (Engine, EagerEngine)
    )
    assert late < 1.01 * soon


@pytest.mark.parametrize("error_factor", [0.3, 3.0])
@pytest.mark.parametrize("host", [0.0001, 0.0005, 0.02])
def test_step_times_are_learnt_although_some_ends_are_not_observed(host: float, error_factor: float):
    """Step times are estimated correctly, because estimates that include waiting would grow without end. If the host is
    slower than the device, a step takes the host's time."""
    cost = StepCost(step=0.001, decode=0.0001, prompt=0.00001, host=host)
    costs = Costs(1e9, 1e4, error_factor * 0.0011, error_factor * 0.0001)
    _, _, engine = serve(cost, num_interactive=0, costs=costs)
    takes = max(host, 0.001 + 0.0001 * SLOTS)
    assert engine.scheduler.policy.step_time_model.step_seconds(SLOTS) == pytest.approx(takes, rel=0.05)


def test_a_step_takes_the_time_that_the_device_took():
    """The host looks for its result when the estimate says, and would confirm an estimate that is too long."""
    cost, clock = StepCost(step=0.001, decode=0.0001, prompt=0.00001, host=0.0005), Clock()
    config = EngineConfig(model="none", max_num_seqs=SLOTS).validate()
    engine = simulated_engine(config, cost, clock, num_pages=64)
    engine.submit(make_request("alone", 1, 1, ServiceClass.STANDARD))
    engine.step()
    clock.now += 0.5
    engine.step()
    assert not engine.has_work
    assert engine.load().step_seconds == pytest.approx(0.001 + 9 * 0.00001)


def test_the_lead_settles_where_one_step_in_forty_is_late():
    """Required lead may vary by a factor of two and change permanently."""
    lead, rng = LaunchLead(), random.Random(2)
    for needed in (0.0004, 0.003):
        idle = []
        for _ in range(4000):
            is_idle = lead.seconds(is_recorded=True) < needed * rng.uniform(1.0, 2.0)
            lead.observe(is_recorded=True, estimated=1.0, device_was_idle=is_idle)
            idle.append(is_idle)
        assert 0.01 < mean(idle[1000:]) < 0.04
        assert needed < lead.seconds(is_recorded=True) < 4 * needed
    assert lead.seconds(is_recorded=False) == INITIAL_LEAD_SECONDS, "other steps were not observed"


def test_the_lead_never_shrinks_below_its_minimum():
    """On a machine that is never late the lead stays at its minimum."""
    lead = LaunchLead()
    for _ in range(2000):
        lead.observe(is_recorded=False, estimated=1.0, device_was_idle=False)
    assert lead.seconds(is_recorded=False) == MIN_LEAD_SECONDS


def test_the_lead_does_not_grow_where_that_does_not_help():
    """A step that is decided at once and is late anyway does not increase the lead, which would take long to shrink."""
    lead = LaunchLead()
    for _ in range(2000):
        lead.observe(is_recorded=False, estimated=0.003, device_was_idle=False)
    for _ in range(200):
        lead.observe(is_recorded=False, estimated=0.003, device_was_idle=True)
    assert lead.seconds(is_recorded=False) == 0.003


def test_short_host_bound_steps_do_not_inflate_the_lead_of_later_long_steps():
    """A single stream decodes in host-bound steps of a millisecond before bulk work arrives."""
    cost = StepCost(step=0.001, decode=0.0001, prompt=0.00001, host=0.0013)
    arrivals = [(0.0, make_request("alone", 1, 1500, ServiceClass.STANDARD))]
    arrivals += [(2.2, make_request(f"b{number}", number, 400, ServiceClass.BATCH)) for number in range(SLOTS)]
    config = EngineConfig(model="none", max_num_seqs=SLOTS).validate()
    engine = simulate(config, cost, arrivals, lambda *_: None, num_pages=64 * SLOTS, host_pages=0)
    assert engine._launch_lead.seconds(is_recorded=True) < 0.0025
