"""A step is decided as late as the device allows, where there is one (docs/decisions/0021). Time is a formula here."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import mean

import pytest

from benchmarks.scheduling.device import AtOnce
from engine.config import EngineConfig
from engine.engine import Engine
from engine.lead import FIRST, LEAST, Lead
from engine.scheduling.costs import Costs
from engine.simulation import StepCost, simulate
from engine.types import Event, Request, SamplingParams, ServiceClass, TokenEvent

AHEAD = StepCost(step=0.001, decode=0.0001, prompt=0.00001, chunk=0.001, host=0.0005)
SLOTS = 32  # that decode in a step of 4.2 ms


def ask(name: str, number: int, tokens: int, service_class: ServiceClass) -> Request:
    sampling = SamplingParams(max_tokens=tokens)
    return Request(id=name, prompt=(number,) * 9, sampling=sampling, service_class=service_class)


def serve(cost: StepCost, people: int, **more) -> tuple[list[float], float, Engine]:
    """Bulk work that fills every slot with as much again waiting, and people who come now and then, one at a time.
    Returns how long each waited for the first token, when the last token of all came, and the engine."""
    dice = random.Random(1)
    arrivals = [(0.0, ask(f"b{number}", number, 400, ServiceClass.BATCH)) for number in range(2 * SLOTS)]
    for number in range(people):
        at = 1.0 + number * 0.03 + dice.uniform(0.0, 0.02)
        arrivals.append((at, ask(f"p{number}", 1000 + number, 2, ServiceClass.INTERACTIVE)))
    came = {request.id: at for at, request in arrivals}
    first: dict[str, float] = {}
    last = 0.0

    def take(events: list[Event], now: float) -> None:
        nonlocal last
        for event in events:
            if isinstance(event, TokenEvent):
                first.setdefault(event.request_id, now)
                last = now

    config = EngineConfig(model="none", max_num_seqs=SLOTS).validate()
    engine = simulate(config, cost, arrivals, take, num_pages=64 * SLOTS, host_pages=0, **more)
    return [at - came[name] for name, at in first.items() if name[0] == "p"], last, engine


def test_who_comes_while_a_step_is_computed_is_in_the_next_one():
    """And not in the one after that: half a step of bulk work sooner at least, on the mean."""
    late, _, _ = serve(AHEAD, people=40)
    soon, _, _ = serve(AHEAD, people=40, make=AtOnce)
    assert len(late) == len(soon) == 40
    assert mean(soon) - mean(late) > 0.5 * (AHEAD.step + AHEAD.decode * SLOTS)


@pytest.mark.parametrize("host_prompts", [0.0, 0.003])
def test_the_device_hardly_waits_for_it(host_prompts: float):
    """All that is to be computed takes no more than a hundredth longer, though prompts may take long to launch: that is
    to be over before the step is that is computed meanwhile, or its tokens would be told late too."""
    cost = replace(AHEAD, host_prompts=host_prompts)
    (_, late, _), (_, soon, _) = (serve(cost, people=60, make=make) for make in (Engine, AtOnce))
    assert late < 1.01 * soon


@pytest.mark.parametrize("believed", [0.3, 3.0])
@pytest.mark.parametrize("host", [0.0001, 0.0005, 0.02])
def test_what_steps_take_is_learnt_though_some_end_unseen(host: float, believed: float):
    """Ever longer steps are foreseen else, as what is foreseen is waited for. Where the host is slower than the device,
    a step takes what the host does."""
    cost = StepCost(step=0.001, decode=0.0001, prompt=0.00001, host=host)
    costs = Costs(1e9, 1e4, believed * 0.0011, believed * 0.0001)
    _, _, engine = serve(cost, people=0, costs=costs)
    takes = max(host, 0.001 + 0.0001 * SLOTS)
    assert engine.scheduler.policy.pace.step_seconds(SLOTS) == pytest.approx(takes, rel=0.05)


def test_it_settles_where_one_step_in_forty_comes_too_late():
    """Whatever it has to cover: that may be twice as much at a time, and change for good."""
    lead, dice = Lead(), random.Random(2)
    for needed in (0.0004, 0.003):
        dry = []
        for _ in range(4000):
            is_dry = lead.seconds(is_recorded=True) < needed * dice.uniform(1.0, 2.0)
            lead.observe(is_recorded=True, foreseen=1.0, ran_dry=is_dry)
            dry.append(is_dry)
        assert 0.01 < mean(dry[1000:]) < 0.04
        assert needed < lead.seconds(is_recorded=True) < 4 * needed
    assert lead.seconds(is_recorded=False) == FIRST, "nothing was seen of others"


def test_it_never_shrinks_to_nothing():
    """On a machine that is never late."""
    lead = Lead()
    for _ in range(2000):
        lead.observe(is_recorded=False, foreseen=1.0, ran_dry=False)
    assert lead.seconds(is_recorded=False) == LEAST


def test_it_does_not_grow_where_that_does_not_help():
    """A step that is decided at once and too late all the same; it would take long to forget."""
    lead = Lead()
    for _ in range(2000):
        lead.observe(is_recorded=False, foreseen=0.003, ran_dry=False)
    for _ in range(200):
        lead.observe(is_recorded=False, foreseen=0.003, ran_dry=True)
    assert lead.seconds(is_recorded=False) == 0.003


def test_short_steps_that_the_host_is_too_slow_for_do_not_spoil_the_long_ones_that_follow():
    """Somebody decodes alone, a millisecond a step, which takes the host longer; then bulk work comes, and a person."""
    cost = StepCost(step=0.001, decode=0.0001, prompt=0.00001, host=0.0013)
    arrivals = [(0.0, ask("alone", 1, 1500, ServiceClass.STANDARD))]
    arrivals += [(2.2, ask(f"b{number}", number, 400, ServiceClass.BATCH)) for number in range(SLOTS)]
    config = EngineConfig(model="none", max_num_seqs=SLOTS).validate()
    engine = simulate(config, cost, arrivals, lambda *_: None, num_pages=64 * SLOTS, host_pages=0)
    assert engine._lead.seconds(is_recorded=True) < 0.0025
