"""The simulator: the same engine, with a formula for the time of a step."""

from __future__ import annotations

import random
from collections import defaultdict
from itertools import pairwise

import pytest

from app.bench.workloads import Scale, workload
from app.tenants import TIERS
from engine.config import EngineConfig
from engine.scheduling.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT, SLACK
from engine.scheduling.integrity import check_integrity
from engine.scheduling.policies import POLICIES
from engine.simulation import StepCost, simulate
from engine.types import Event, Request, SamplingParams, ServiceClass, TokenEvent

COST = StepCost(step=0.010, decode=0.001, prompt=0.0001)


def ask(number: int, prompt: int = 10, tokens: int = 5, **more) -> Request:
    return Request(id=f"r{number}", prompt=tuple(range(prompt)), sampling=SamplingParams(max_tokens=tokens), **more)


def run(arrivals: list[tuple[float, Request]], **options) -> list[tuple[float, str]]:
    """When each token came, and whose it was."""
    config = EngineConfig(model="none", **{"max_num_seqs": 4, **options}).validate()
    tokens: list[tuple[float, str]] = []

    def take(events: list[Event], now: float) -> None:
        tokens.extend((now, event.request_id) for event in events if isinstance(event, TokenEvent))

    engine = simulate(config, COST, arrivals, take, num_pages=64, host_pages=64, max_len=256)
    check_integrity(engine.scheduler)
    assert not engine.has_work
    return tokens


def test_a_lone_request_takes_what_the_formula_says():
    """A step for its prompt, and one for each further token."""
    times = [at for at, _ in run([(1.0, ask(1))])]
    assert times == pytest.approx([1.0 + 0.010 + 0.001 + i * 0.011 for i in range(5)])


def test_those_who_run_together_share_steps_and_pay_for_their_rows():
    """Two rows in a step cost one row more."""
    times = [at for at, who in run([(0.0, ask(1)), (0.0, ask(2, prompt=11))]) if who == "r1"]
    assert [b - a for a, b in pairwise(times)] == pytest.approx([0.012] * 4)


def test_time_in_which_nobody_is_there_passes_at_once():
    """An hour between two requests is no step."""
    tokens = run([(0.0, ask(1)), (3600.0, ask(2))])
    assert next(at for at, who in tokens if who == "r2") == pytest.approx(3600.0110)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_ends_every_request_and_the_same_twice(policy: str):
    """There is no clock and no randomness in it but what it is given."""
    arrivals = [
        (number / 100, ask(number, 5 + number % 30, 3 + number % 9, service_class=ServiceClass(number % 3)))
        for number in range(60)
    ]
    first = run(arrivals, scheduling_policy=policy)
    assert len(first) == sum(3 + number % 9 for number in range(60))
    assert run(arrivals, scheduling_policy=policy) == first


def test_a_batch_waits_for_its_time_in_the_simulator_too():
    """Nothing else happens until it is up, and who comes meanwhile is in it."""
    tokens = run([(0.0, ask(1)), (0.4, ask(2))], batching="static", batch_timeout=0.5, scheduling_policy="orca")
    first = min(at for at, _ in tokens)
    assert first == pytest.approx(0.5 + 0.012)
    assert {who for at, who in tokens if at == first} == {"r1", "r2"}


LIKE_A_CPU = StepCost(step=0.0016, decode=0.00013, prompt=0.00015, context=5e-7, swapped_page=1e-5)
HALF_AS_FAST = StepCost(step=0.0032, decode=0.00026, prompt=0.0003, context=1e-6, swapped_page=2e-5)


def calm(cost: StepCost, slots: int, flood: int) -> tuple[list[float], list[float]]:
    """Times to first token of a tenant that asks three times a second, and its gaps; beside `flood` requests of
    another, which all stand there from the beginning and outlast it."""
    dice, at, arrivals = random.Random(1), 0.0, []
    for number in range(flood):
        sampling = SamplingParams(max_tokens=96)
        arrivals.append((0.0, Request(id=f"f{number}", prompt=(number,) * 48, sampling=sampling, tenant="flood")))
    for number in range(120):
        at += dice.expovariate(3.0)
        sampling = SamplingParams(max_tokens=32)
        arrivals.append((at, Request(id=f"c{number}", prompt=(5000 + number,) * 128, sampling=sampling, tenant="calm")))
    came = {request.id: at for at, request in arrivals}
    said: dict[str, list[float]] = defaultdict(list)

    def take(events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, TokenEvent):
                said[event.request_id].append(now)

    config = EngineConfig(model="none", max_num_seqs=slots).validate()
    simulate(config, cost, arrivals, take, num_pages=64 * slots, host_pages=256 * slots, max_len=512)
    assert not flood or max(times[-1] for name, times in said.items() if name[0] == "f") > arrivals[-1][0]
    answers = {name: times for name, times in said.items() if name[0] == "c"}
    gaps = [after - before for times in answers.values() for before, after in pairwise(times)]
    return sorted(times[0] - came[name] for name, times in answers.items()), sorted(gaps)


@pytest.mark.parametrize("fair_share", [HALF_AS_FAST, LIKE_A_CPU], ids=["half of the speed", "all of the speed"])
def test_a_flood_costs_another_tenant_little_against_having_half_of_the_slots_to_itself(fair_share: StepCost):
    """Within 1.5 times at p99: against a machine half as fast, which is its fair share, and even against one as fast.
    Time is a formula here, so this is no timing."""
    alone, beside = calm(fair_share, slots=4, flood=0), calm(LIKE_A_CPU, slots=8, flood=1000)
    for mine, theirs in zip(beside, alone, strict=True):
        assert mine[int(0.99 * len(mine))] <= 1.5 * theirs[int(0.99 * len(theirs))]


@pytest.mark.parametrize(("policy", "is_fair"), [("carousel", True), ("orca", False)])
def test_two_backlogged_tenants_are_served_alike_within_the_published_bound(policy: str, is_fair: bool):
    """VTC's, with our slack, though all of one came before all of the other; first come first served breaks it."""
    dice, slots, longest = random.Random(2), 8, 64
    names = [f"{tenant}{number}" for tenant in "ab" for number in range(150)]
    lengths = {name: (dice.randint(1, longest), dice.randint(1, longest)) for name in names}
    arrivals = [
        (0.0, Request(id=name, prompt=(7,) * prompt, sampling=SamplingParams(max_tokens=tokens), tenant=name[0]))
        for name, (prompt, tokens) in lengths.items()
    ]
    bound = 2 * max(PROMPT_WEIGHT * longest, OUTPUT_WEIGHT * slots * 2 * longest) + SLACK
    had, begun, widest = {"a": 0.0, "b": 0.0}, {"a": set[str](), "b": set[str]()}, 0.0

    def take(events: list[Event], now: float) -> None:
        nonlocal widest
        for event in events:
            if isinstance(event, TokenEvent):
                name, tenant = event.request_id, event.request_id[0]
                if name not in begun[tenant]:
                    begun[tenant].add(name)
                    had[tenant] += PROMPT_WEIGHT * lengths[name][0]
                had[tenant] += OUTPUT_WEIGHT
        if max(map(len, begun.values())) < 150:  # both have somebody who waits
            widest = max(widest, abs(had["a"] - had["b"]))

    config = EngineConfig(model="none", max_num_seqs=slots, scheduling_policy=policy).validate()
    simulate(config, LIKE_A_CPU, arrivals, take, num_pages=512, max_len=512)
    assert (widest <= bound) is is_fair


def test_bulk_work_waits_little_longer_than_its_bound_where_all_of_it_can_just_be_done():
    """A tenth of it people's: what is read beside them is not so little that others wait longer and longer."""
    bound, slots, pages = 2.0, 128, 1024
    options = {"max_num_seqs": slots, "max_wait_batch": bound, "enable_prefix_caching": False}
    config = EngineConfig(model="none", **options).validate()
    asked = list(workload("mixed", 12_000, Scale(rate=150.0, prompt=64, output=24, longest=256)))
    began = {str(number): one.at for number, one in enumerate(asked) if TIERS[one.tier] is ServiceClass.BATCH}
    waited: dict[str, float] = {}

    def take(events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, TokenEvent) and event.request_id in began:
                waited.setdefault(event.request_id, now - began[event.request_id])

    arrivals = [
        (
            one.at,
            Request(
                id=str(number),
                prompt=(5,) * one.prompt_tokens,
                sampling=SamplingParams(max_tokens=one.output_tokens),
                service_class=TIERS[one.tier],
            ),
        )
        for number, one in enumerate(asked)
    ]
    cost = StepCost(step=0.008, decode=0.00002, prompt=0.00005, context=2e-8, swapped_page=0.00002)
    simulate(config, cost, arrivals, take, num_pages=pages, host_pages=16 * pages)
    assert len(waited) == len(began) > 10_000
    assert max(waited.values()) < 2 * bound
