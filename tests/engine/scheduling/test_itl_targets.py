"""Prompt budgets follow the ITL targets, the pace of running streams and the urgency of prompts."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import DEFAULT_TARGET_ITL_SECONDS, EngineConfig
from engine.errors import ConfigError
from engine.scheduling.account import Account
from engine.scheduling.carousel_state import CarouselState
from engine.scheduling.itl_targets import (
    AGEING,
    FULL_TARGET_PROMPTS,
    MAX_LAG_SECONDS,
    PLANNED_SHARE,
    SINGLE_PROMPT_SHARE,
    ItlTargets,
    prefill_rank,
)
from engine.scheduling.policies.carousel import Carousel
from engine.scheduling.sequence import Sequence
from engine.simulation import StepCost, simulate
from engine.types import (
    Event,
    Phase,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
    WaitReason,
)

INTERACTIVE, STANDARD, BATCH = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH
TOKEN_SECONDS = 0.001
# SmolLM2-135M in bfloat16 on two cores: 15 ms a step of 32 rows, 1 ms a prompt token.
TWO_CORES = StepCost(step=0.006, decode=0.00025, prompt=TOKEN_SECONDS, context=4e-7)

# The same model on two cores with AVX2 only, and on a processor that is ten times slower than the first.
AVX2 = StepCost(step=0.035, decode=0.002, prompt=0.012, prompt_context=0.012 * 3e-4)
TENFOLD = StepCost(step=0.06, decode=0.0025, prompt=0.01, prompt_context=0.01 * 3e-4)

Latencies = dict[str, list[float]]  # seconds from arrival to each token, by request


def sequence(prompt: int, now: float = 0.0, service_class: ServiceClass = STANDARD, **more) -> Sequence:
    request = Request(
        id="r", prompt=(7,) * prompt, sampling=SamplingParams(max_tokens=500), service_class=service_class, **more
    )
    made = Sequence(request, 0, 0, now, 32, 8192)
    made.policy_state = CarouselState(Account(1.0, id))
    return made


def make_request(name: str, prompt: int, tokens: int, **more) -> Request:
    token = random.Random(name).randrange(1 << 20)  # unique, so that no prompt is in the prefix cache
    return Request(id=name, prompt=(token,) * prompt, sampling=SamplingParams(max_tokens=tokens), **more)


def latencies(arrivals: Iterable[tuple[float, Request]], cost: StepCost = TWO_CORES, **options) -> Latencies:
    arrivals = sorted(arrivals, key=lambda arrival: arrival[0])
    arrival_times = {request.id: at for at, request in arrivals}
    times: Latencies = defaultdict(list)

    def collect(events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, TokenEvent):
                times[event.request_id].append(now - arrival_times[event.request_id])

    config = EngineConfig(model="none", **options).validate()
    simulate(config, cost, arrivals, collect, num_pages=4000, max_len=8192)
    assert times.keys() == arrival_times.keys()
    return times


def first_tokens(times: Latencies) -> list[float]:
    return sorted(of_request[0] for of_request in times.values())


def gaps(times: Latencies) -> list[float]:
    return sorted(after - before for of_request in times.values() for before, after in pairwise(of_request))


def quantile(values: list[float], share: float) -> float:
    return values[int(share * (len(values) - 1))]


def lognormal_requests(seed: int, count: int) -> list[Request]:
    """Requests with lognormal lengths, means 220 tokens in and 180 out."""
    rng = random.Random(seed)

    def length(mean: float, sigma: float) -> int:
        return max(1, min(1500, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))

    return [make_request(f"r{number}", length(220, 1.2), length(180, 0.9)) for number in range(count)]


@pytest.fixture
def fixed_budget(monkeypatch):
    """Return a context in which prompts are computed in order of arrival with the budget of decision 0011."""

    def without_targets(arrivals: Iterable[tuple[float, Request]], cost: StepCost = TWO_CORES) -> Latencies:
        with monkeypatch.context() as patch:
            patch.setattr(Carousel, "_urgent_seconds", lambda *_: 0.0)
            patch.setattr(Carousel, "_in_turn", lambda _, prompts: prompts)
            return latencies(arrivals, cost)

    return without_targets


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_first_tokens_of_a_burst_come_in_half_the_time_and_gaps_stay_within_the_target(seed: int, fixed_budget):
    """32 requests arrive at once; the reference is the fixed budget."""
    burst = [(0.0, request) for request in lognormal_requests(seed, 32)]
    before, now = fixed_budget(burst), latencies(burst)
    assert quantile(first_tokens(now), 0.5) <= 0.5 * quantile(first_tokens(before), 0.5)
    assert quantile(gaps(now), 0.99) <= DEFAULT_TARGET_ITL_SECONDS["target_itl_standard"]


@pytest.mark.no_cover  # thousands of steps through lines that other tests cover
@pytest.mark.parametrize("rate", [0.5, 1.5, 2.5])
def test_first_tokens_come_earlier_at_any_rate_and_gaps_stay_within_the_target(rate: float, fixed_budget):
    """Poisson arrivals, from a fifth of the capacity to all of it; the longest prompts hardly wait longer."""
    rng, at, arrivals = random.Random(4), 0.0, []
    for request in lognormal_requests(4, 100):
        at += rng.expovariate(rate)
        arrivals.append((at, request))
    before, now = fixed_budget(arrivals), latencies(arrivals)
    assert quantile(first_tokens(now), 0.5) < quantile(first_tokens(before), 0.5)
    assert quantile(first_tokens(now), 0.99) <= 1.1 * quantile(first_tokens(before), 0.99)
    assert quantile(gaps(now), 0.99) <= DEFAULT_TARGET_ITL_SECONDS["target_itl_standard"]


@pytest.mark.parametrize("cost", [AVX2, TENFOLD], ids=["AVX2", "tenfold"])
@pytest.mark.parametrize("streams", [1, 8])
def test_a_long_prompt_keeps_the_gaps_within_the_target_on_slow_processors(cost: StepCost, streams: int):
    """Chunks shrink as far as that needs, and as the prompt grows; it is read all the same."""
    arrivals = [(0.0, make_request(f"s{number}", 20, 3000)) for number in range(streams)]
    times = latencies([*arrivals, (10.0, make_request("long", 6000, 2))], cost)
    beside = [
        later - earlier
        for name in times
        for earlier, later in pairwise(times[name])
        if name != "long" and 11.0 < later < 10.0 + times["long"][0]
    ]
    target = DEFAULT_TARGET_ITL_SECONDS["target_itl_standard"]
    assert quantile(beside, 0.5) <= target and quantile(beside, 0.99) <= 1.2 * target


def test_a_target_out_of_reach_is_logged_and_lets_prompts_lengthen_steps_by_a_fifth(caplog):
    """The rows of a step alone take twice the target."""
    cost = StepCost(step=0.22, decode=0.02, prompt=0.008)
    times = latencies([(0.0, make_request("s", 20, 300)), (5.0, make_request("long", 600, 2))], cost)
    beside = [b - a for a, b in pairwise(times["s"]) if 6.0 < b < 5.0 + times["long"][0]]
    assert quantile(beside, 0.5) == pytest.approx(1.2 * 0.24, rel=0.1)
    (warning,) = [record for record in caplog.records if "target-itl-standard 0.12" in record.getMessage()]
    assert warning.getMessage().startswith("a step of the running answers takes 0.2")


def test_a_prompt_that_is_read_slowly_says_so():
    """Its timeline has the reason while running answers leave it a few tokens a step."""
    statuses: list[StatusEvent] = []
    simulate(
        EngineConfig(model="none").validate(),
        AVX2,
        [(0.0, make_request("s", 20, 300)), (5.0, make_request("long", 300, 2))],
        lambda events, now: statuses.extend(event for event in events if isinstance(event, StatusEvent)),
        num_pages=4000,
        max_len=8192,
    )
    phases = [(event.phase, event.cause) for event in statuses if event.request_id == "long"]
    assert (Phase.PREFILL, WaitReason.PACE) in phases
    assert phases[-2:] == [(Phase.DECODE, None), (Phase.ENDED, None)]


@pytest.mark.parametrize("service_class", [INTERACTIVE, STANDARD])
@pytest.mark.parametrize("target", [None, 0.075, 0.18])
def test_a_long_prompt_keeps_the_gaps_of_streams_within_their_target(
    service_class: ServiceClass, target: float | None, fixed_budget
):
    """6,000 tokens beside 8 streams, whose steps take two thirds of the target; the prompt is computed sooner than
    with the fixed budget."""
    streams = [(0.0, make_request(f"s{number}", 20, 800, service_class=service_class)) for number in range(8)]
    arrivals = [*streams, (1.0, make_request("long", 6000, 2, service_class=service_class))]
    name = f"target_itl_{service_class.name.lower()}"
    before, now = fixed_budget(arrivals), latencies(arrivals, **{name: target})
    assert quantile(gaps(now), 0.99) <= SINGLE_PROMPT_SHARE * (target or DEFAULT_TARGET_ITL_SECONDS[name])
    assert now["long"][0] < before["long"][0]


def test_more_prompts_get_more_of_the_target():
    """Two thirds for one prompt, all of it from four on."""
    targets, stream = ItlTargets(EngineConfig(model="none", target_itl_standard=0.1)), sequence(5)
    longest = [
        targets.step_seconds([stream], [sequence(5) for _ in range(count)], TOKEN_SECONDS, 0.0)[0]
        for count in (1, 2, 3, 4, 9)
    ]
    full = PLANNED_SHARE * 0.1
    assert longest == pytest.approx([full * 6 / 9, full * 7 / 9, full * 8 / 9, full, full])


def test_one_short_prompt_leaves_the_gaps_of_a_stream_as_they_are(fixed_budget):
    """A prompt of 128 tokens that takes 13 ms in all is not urgent."""
    arrivals = [(0.0, make_request("stream", 20, 100)), (0.1, make_request("short", 128, 5))]
    cost = StepCost(step=0.002, decode=0.0001, prompt=0.0001)
    assert latencies(arrivals, cost) == fixed_budget(arrivals, cost)


def test_short_prompts_are_computed_before_a_slightly_earlier_long_one():
    """Shortest remaining prefill comes first beside a stream."""
    arrivals = [(0.0, make_request("stream", 20, 900)), (0.5, make_request("long", 3000, 2))]
    arrivals += [(0.6, make_request(f"short{number}", 50, 2)) for number in range(5)]
    times = latencies(arrivals)
    assert max(times[f"short{number}"][0] for number in range(5)) < 1.0
    assert times["long"][0] > 2.0


def test_a_flood_of_short_prompts_does_not_starve_a_long_one():
    """The flood exceeds the machine's capacity; the long prompt is overtaken only within its ageing bound."""
    prompt, flood = 1000, [(number * 0.1, make_request(f"short{number}", 120, 2)) for number in range(400)]
    times = latencies([*flood, (1.01, make_request("long", prompt, 2))])
    alone = prompt * TOKEN_SECONDS
    overtaken = sum(0.1 * n + times[f"short{n}"][0] < 1.01 + times["long"][0] and 0.1 * n > 1.01 for n in range(400))
    assert 0 < overtaken <= AGEING * alone / 0.1 + 1
    assert 1.01 + times["long"][0] < 0.1 * 399, "the flood ended first"


def test_a_tenant_with_long_prompts_takes_turns_with_one_that_has_short_ones():
    """Service received takes precedence over the length of a prompt."""
    flood = [(0.0, make_request(f"short{number}", 100, 2, tenant="flood")) for number in range(30)]
    times = latencies([*flood, (0.0, make_request("long", 400, 2, tenant="calm"))])
    earlier = sum(times[f"short{number}"][0] < times["long"][0] for number in range(30))
    assert earlier < 15


@given(
    running=st.lists(st.sampled_from(ServiceClass), min_size=1, max_size=8),
    acts=st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(0, 3)), max_size=30),
    prompts=st.lists(st.integers(2, 2000), max_size=4),
)
def test_a_step_never_exceeds_the_strictest_target_and_urgency_is_a_share(running, acts, prompts):
    """This holds for any history of steps and tokens."""
    targets, now = ItlTargets(EngineConfig(model="none")), 0.0
    streams, waiting = [sequence(5, 0.0, c) for c in running], [sequence(n) for n in prompts]
    strictest = min(DEFAULT_TARGET_ITL_SECONDS[f"target_itl_{c.name.lower()}"] for c in running)
    for seconds, tokens in acts:
        now += seconds
        for stream in streams:
            stream.num_tokens += tokens
        longest, urgency = targets.step_seconds(streams, waiting, TOKEN_SECONDS, now)
        assert 0.0 <= longest <= PLANNED_SHARE * strictest
        assert 0.0 <= urgency <= 1.0


def test_a_late_stream_gets_no_longer_steps_until_it_has_caught_up():
    """The lag is bounded, and early tokens make up for it."""
    targets, stream = ItlTargets(EngineConfig(model="none", target_itl_standard=0.1)), sequence(5)
    many = [sequence(5) for _ in range(FULL_TARGET_PROMPTS)]

    def longest(now: float) -> float:
        return targets.step_seconds([stream], many, TOKEN_SECONDS, now)[0]

    assert longest(0.0) == pytest.approx(0.095)
    assert longest(60.0) == 0.0
    stream.num_tokens += int(MAX_LAG_SECONDS / 0.1)
    assert longest(60.0) == pytest.approx(0.0, abs=1e-9)
    stream.num_tokens += 1
    assert longest(60.06) == pytest.approx(0.04)
    stream.num_tokens += 50
    assert longest(60.1) == longest(62.0) == pytest.approx(0.095), "credit of early tokens"


@pytest.mark.parametrize(
    ("prompts", "now", "urgency"), [([100], 0.0, 0.1), ([100, 200], 0.25, 0.55), ([100], 5.0, 1.0), ([6000], 0.0, 1.0)]
)
def test_urgency_grows_with_the_wait_and_with_the_tokens_left(prompts: list[int], now: float, urgency: float):
    """The longest wait plus the time to compute all prompts, as a share of a second."""
    targets = ItlTargets(EngineConfig(model="none"))
    waiting = [sequence(tokens) for tokens in prompts]
    assert targets.step_seconds([sequence(5)], waiting, TOKEN_SECONDS, now)[1] == pytest.approx(urgency)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(2, 5000)), min_size=2, max_size=10))
def test_a_prompt_is_overtaken_only_by_prompts_within_its_ageing_bound(prompts: list[tuple[float, int]]):
    """Only shorter prompts that arrive within `AGEING` times its prefill time overtake it."""
    ranked = sorted((sequence(n, at) for at, n in prompts), key=lambda s: prefill_rank(s, TOKEN_SECONDS))
    for number, later in enumerate(ranked):
        for earlier in ranked[:number]:
            younger_by = earlier.waiting_since - later.waiting_since
            if younger_by > 1e-9:
                assert earlier.num_uncomputed < later.num_uncomputed
                assert younger_by <= AGEING * TOKEN_SECONDS * later.num_uncomputed


def test_priority_and_deadline_go_before_the_length_of_a_prompt():
    """The order is that of admission."""
    urgent, dated, short = sequence(900, priority=-1), sequence(500, deadline=9.0), sequence(5)
    ranked = sorted([short, dated, urgent], key=lambda s: prefill_rank(s, TOKEN_SECONDS))
    assert ranked == [urgent, dated, short]


@pytest.mark.parametrize("name", DEFAULT_TARGET_ITL_SECONDS)
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_target_that_is_no_positive_time_is_refused(name: str, value: float):
    """The message names the option and the value."""
    with pytest.raises(ConfigError, match=f"{name} must be a positive number of seconds, got {value}"):
        EngineConfig(model="none", **{name: value}).validate()


@pytest.mark.parametrize("fixed", [{"step_time": 0.02}, {"max_num_batched_tokens": 99}, {"scheduling_policy": "vllm"}])
def test_a_target_beside_an_option_that_makes_it_void_is_refused(fixed: dict):
    """The message names both options; without a target all of them are accepted."""
    EngineConfig(model="none", **fixed).validate()
    with pytest.raises(ConfigError, match=f"target_itl_batch .*{next(iter(fixed))}"):
        EngineConfig(model="none", target_itl_batch=0.2, **fixed).validate()


def test_a_configured_step_time_fixes_the_budget():
    """A long prompt beside a stream gets no more than the configured time."""
    arrivals = [(0.0, make_request("stream", 20, 200)), (0.1, make_request("long", 1000, 2))]
    assert max(gaps(latencies(arrivals, step_time=0.01))) < 0.045
