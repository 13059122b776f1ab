"""Guarantees of the scheduling policy, each in a small scenario."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.engine import Engine
from engine.scheduling.costs import Costs
from engine.scheduling.integrity import check_integrity
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import (
    EndEvent,
    PreemptionMode,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
    WaitReason,
)
from tests.engine.scheduling.history import STEP_SECONDS, History
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import MemoryRunner, text_alone
from tests.profiles import examples

I, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH  # noqa: E741


class Scenario:
    """Engine on a fake model with a manual clock."""

    def __init__(self, *, slots=2, pages=32, host=32, swap_speed=1e9, size=4, **options) -> None:
        options = {"max_num_batched_tokens": slots + 8, "page_size": size} | options
        config = EngineConfig(model="fake", max_num_seqs=slots, **options).validate()
        policy = make_policy(config, Costs(swap_speed, 100.0))
        self.now = 0.0
        self.scheduler = Scheduler(config, policy, num_pages=pages, host_pages=host, max_len=256)
        self.runner = MemoryRunner(pages, host, size)
        info = model_info(pages, slots, size, max_model_len=256)
        self.engine = Engine(config, info, self.scheduler, self.runner, clock=lambda: self.now)
        self.events: list = []

    def submit(self, name: str, service_class: ServiceClass, prompt=(1, 2, 3), tokens=20, **more) -> None:
        sampling = SamplingParams(max_tokens=tokens)
        request = Request(id=name, prompt=tuple(prompt), sampling=sampling, service_class=service_class, **more)
        self.engine.submit(request)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1.0
            self.events += self.engine.step()
            check_integrity(self.scheduler)

    def finish(self) -> None:
        for _ in range(5000):
            if not self.engine.has_work:
                return
            self.step()
        pytest.fail("no progress")

    def tokens(self, name: str, choice: int = 0) -> list[int]:
        return [
            e.token_id for e in self.events if isinstance(e, TokenEvent) and (e.request_id, e.choice) == (name, choice)
        ]

    def statuses(self, name: str) -> list[StatusEvent]:
        return [e for e in self.events if isinstance(e, StatusEvent) and e.request_id == name]

    def running(self) -> list[str]:
        return [s.request.id for s in self.scheduler.running]


@pytest.mark.parametrize("scarce", ["slots", "pages", "budget"])
def test_an_interactive_request_gets_a_token_in_the_next_step(scarce: str):
    """Batch work may have taken all slots, pages, or the token budget."""
    scenario = {
        "slots": lambda: Scenario(slots=2),
        "pages": lambda: Scenario(slots=8, pages=16),
        "budget": lambda: Scenario(slots=4, max_num_batched_tokens=6, pages=64),
    }[scarce]()
    for i in range(8):
        scenario.submit(f"b{i}", B, prompt=range(24 if scarce == "budget" else 6), tokens=30)
    scenario.step(6 if scarce != "budget" else 2)
    scenario.submit("person", I, prompt=(5,))
    scenario.step()
    assert len(scenario.tokens("person")) == 1
    scenario.finish()
    for i in range(8):
        prompt = range(24 if scarce == "budget" else 6)
        assert scenario.tokens(f"b{i}") == text_alone(list(prompt), 0, 30)


@pytest.mark.parametrize(("waiting", "running"), [(S, S), (B, B), (I, I), (B, S), (S, I)])
def test_no_request_is_preempted_for_an_equal_or_lower_class(waiting: ServiceClass, running: ServiceClass):
    """The request waits, and its status names the cause."""
    scenario = Scenario(slots=1)
    scenario.submit("first", running)
    scenario.step(3)
    scenario.submit("second", waiting)
    scenario.step(2)
    assert scenario.running() == ["first"]
    assert scenario.statuses("second")[-1].cause is WaitReason.SLOTS
    assert sum(map(scenario.scheduler.load().counters.paused_by, PreemptionMode)) == 0


def test_the_victim_is_of_the_lowest_class_and_the_latest_to_arrive():
    """The latest to arrive loses the least work."""
    scenario = Scenario(slots=4)
    for name, service_class in (("s", S), ("b1", B), ("b2", B), ("i", I)):
        scenario.submit(name, service_class)
        scenario.step()
    scenario.submit("person", I)
    scenario.step()
    assert set(scenario.running()) == {"s", "b1", "i", "person"}
    paused = scenario.statuses("b2")[-1]
    assert (paused.state, paused.preempted_by) == ("paused", I)


def test_a_preempted_sequence_resumes_before_later_arrivals():
    """It keeps its position in its class."""
    scenario = Scenario(slots=1)
    scenario.submit("first", B, tokens=6)
    scenario.step(2)
    scenario.submit("later", B, tokens=2)
    scenario.submit("person", I, tokens=2)
    scenario.step(3)
    assert scenario.running() == ["first"]


@pytest.mark.parametrize(
    ("swap_speed", "host", "mechanism"),
    [(1e9, 32, PreemptionMode.SWAP), (1e-9, 32, PreemptionMode.RECOMPUTE), (1e9, 1, PreemptionMode.RECOMPUTE)],
)
def test_the_cheaper_preemption_mode_is_chosen(swap_speed: float, host: int, mechanism: PreemptionMode):
    """Swap is chosen if copying is faster than recomputing and host memory has room."""
    scenario = Scenario(slots=1, swap_speed=swap_speed, host=host, enable_prefix_caching=False)
    scenario.submit("b", B, prompt=range(10))
    scenario.step(4)
    scenario.submit("person", I, tokens=3)
    scenario.step()
    assert scenario.statuses("b")[-1].mechanism is mechanism
    scenario.finish()
    assert scenario.tokens("b") == text_alone(list(range(10)), 0, 20)


def test_priority_orders_within_a_class_lower_first():
    """The order is vLLM's."""
    scenario = Scenario(slots=1)
    scenario.submit("now", S, tokens=2)
    scenario.step()
    for name, priority in (("c", 5), ("a", -3), ("b", 0)):
        scenario.submit(name, S, tokens=1, priority=priority)
    scenario.finish()
    order = [e.request_id for e in scenario.events if isinstance(e, TokenEvent)]
    assert order == ["now", "now", "a", "b", "c"]


def test_batch_work_advances_under_constant_interactive_load():
    """Interactive requests exceed two slots; overdue work still gets its shares, and is preempted between them."""
    scenario = Scenario(slots=2, max_wait_batch=10.0, min_share=3)
    scenario.submit("night", B, tokens=12)
    for i in range(200):
        scenario.submit(f"p{i}", I, tokens=4)
        scenario.submit(f"q{i}", I, tokens=4)
        scenario.step(3)
        if len(scenario.tokens("night")) == 12:
            break
    assert scenario.tokens("night") == text_alone([1, 2, 3], 0, 12)
    assert sum(e.state == "paused" for e in scenario.statuses("night")) >= 3


def test_a_flood_of_overdue_batch_work_does_not_block_interactive_requests():
    """All of it is overdue, and an interactive request still need not wait."""
    scenario = Scenario(slots=8, max_wait_batch=5.0, min_share=50, pages=200, max_num_batched_tokens=64)
    for i in range(100):
        scenario.submit(f"b{i}", B, tokens=40)
    scenario.step(20)
    for i in range(6):
        scenario.submit(f"p{i}", I, tokens=5)
    scenario.step()
    assert all(len(scenario.tokens(f"p{i}")) == 1 for i in range(6))


def test_a_large_overdue_request_gets_its_pages_under_constant_interactive_load():
    """It needs nearly the whole pool. Interactive requests overtake it until it has waited twice its bound."""
    scenario = Scenario(slots=8, pages=24, max_wait_batch=20.0, min_share=4, max_num_batched_tokens=128)
    for i in range(150):
        scenario.submit(f"p{i}", I, prompt=range(i, i + 8), tokens=8)
        scenario.step()
        if i == 8:
            scenario.submit("large", B, prompt=range(80), tokens=4)
    assert scenario.tokens("large") == text_alone(list(range(80)), 0, 4)
    started = next(e.monotonic_time for e in scenario.statuses("large") if e.state == "running")
    assert 9 + 40.0 <= started <= 9 + 60.0


def test_a_waiting_request_is_notified_of_its_position():
    """Position 1 is next."""
    scenario = Scenario(slots=1)
    scenario.submit("now", S, tokens=5)
    for i in range(3):
        scenario.submit(f"w{i}", S, tokens=1)
    scenario.finish()
    assert [e.position for e in scenario.statuses("w2") if e.state == "queued" and e.position] == [3, 2, 1]


def test_an_abort_in_any_state_frees_all_resources():
    """Aborts apply to waiting, running, swapped, recomputed and blocked sequences, and before a swap has happened."""
    scenario = Scenario(slots=2)
    scenario.submit("n", B, prompt=range(9), n=3)  # its other choices are blocked until the prompt is computed
    scenario.submit("w1", B)
    scenario.engine.abort("n", 2)
    scenario.step()
    scenario.submit("w2", B)
    scenario.step()
    for sequence, mechanism in zip(
        list(scenario.scheduler.running), (PreemptionMode.SWAP, PreemptionMode.RECOMPUTE), strict=True
    ):
        scenario.scheduler.preempt(sequence, scenario.now, mechanism=mechanism)
    for name in ("n", "w1", "w2", "unknown"):
        scenario.engine.abort(name)
    scenario.submit("after", B)
    scenario.finish()
    assert scenario.scheduler.kv_manager.pool.held == 0
    assert scenario.scheduler.kv_manager.host.used == 0
    ends = [(e.request_id, e.choice) for e in scenario.events if isinstance(e, EndEvent)]
    assert sorted(ends) == [("n", 0), ("n", 1), ("n", 2), ("w1", 0), ("w2", 0)]
    assert scenario.tokens("after") == text_alone([1, 2, 3], 0, 20)


def test_a_cancelled_swap_out_writes_nothing():
    """Its host page may belong to another sequence by then."""
    scenario = Scenario(slots=2, host=1)
    scenario.submit("gone", B)
    scenario.submit("kept", B)
    scenario.step(1)
    gone, kept = scenario.scheduler.running
    scenario.scheduler.preempt(gone, scenario.now, mechanism=PreemptionMode.SWAP)
    scenario.engine.abort("gone")
    scenario.scheduler.preempt(kept, scenario.now, mechanism=PreemptionMode.SWAP)
    scenario.finish()
    assert scenario.tokens("kept") == text_alone([1, 2, 3], 0, 20)


def test_a_sibling_does_not_copy_pages_that_are_being_swapped_in():
    """Its first choice is swapped in during the same step, to other pages, because an interactive request took the
    original ones."""
    scenario = Scenario(slots=4, enable_prefix_caching=False, max_num_batched_tokens=64)
    scenario.submit("n", B, prompt=range(6), n=2)
    scenario.step()  # the prompt is computed; the second choice may join from now on
    scenario.scheduler.preempt(scenario.scheduler.running[0], scenario.now, mechanism=PreemptionMode.SWAP)
    scenario.submit("person", I, prompt=range(7, 14))
    scenario.finish()
    assert scenario.tokens("n", 1) == text_alone(list(range(6)), 1, 20)


def test_static_batching_waits_for_the_whole_batch():
    """In the baseline no request joins until all have left."""
    scenario = Scenario(slots=2, batching="static")
    for name, tokens in (("short", 2), ("long", 10), ("next", 2)):
        scenario.submit(name, S, tokens=tokens)
    scenario.step(9)
    assert scenario.running() == ["long"]
    scenario.step(2)
    assert scenario.running() == ["next"]


def test_an_overdue_choice_may_take_the_slot_of_its_first_choice():
    """With one slot and two choices, the overdue second preempts the first and computes the prompt itself."""
    scenario = Scenario(slots=1, enable_prefix_caching=False, max_wait_standard=5.0, min_share=4)
    scenario.submit("n", S, prompt=range(7), tokens=20, n=2)
    scenario.finish()
    for choice in range(2):
        assert scenario.tokens("n", choice) == text_alone(list(range(7)), choice, 20)


def test_a_request_that_shares_a_prefix_with_running_batch_work_is_admitted_only_when_pages_suffice():
    """Pages that the request shares are not freed by preempting their holder."""
    scenario = Scenario(slots=4, pages=9, max_num_batched_tokens=64)
    scenario.submit("b", B, prompt=range(21), tokens=3)
    scenario.submit("j", I, prompt=range(30, 40), tokens=2)
    scenario.step()
    scenario.submit("i", I, prompt=[*range(20), *range(50, 56)], tokens=2)
    scenario.finish()
    assert scenario.tokens("i") == text_alone([*range(20), *range(50, 56)], 0, 2)
    assert scenario.tokens("b") == text_alone(list(range(21)), 0, 3)


def test_no_request_overtakes_an_overdue_one_of_its_own_class():
    """An overdue request cannot lose: its reserved slot is busy, and the order of its class still holds."""
    scenario = Scenario(slots=2, max_wait_standard=3.0, min_share=50, pages=200)
    for i in range(30):
        scenario.submit(f"s{i}", S, tokens=6)
        scenario.step(2)
    scenario.finish()
    started = [e.request_id for e in scenario.events if isinstance(e, StatusEvent) and e.state == "running"]
    first_starts = list(dict.fromkeys(started))
    assert first_starts == [f"s{i}" for i in range(30)]


def test_waiting_time_in_a_previous_engine_counts():
    """A resumed request keeps its waiting time and is overdue at once among interactive ones that fill all slots."""
    scenario = Scenario(slots=2, max_wait_batch=20.0, min_share=4)
    scenario.now = 100.0
    scenario.submit("night", B, tokens=4, waiting_since=85.0)
    for i in range(12):
        scenario.submit(f"p{i}", I, tokens=8)
    scenario.step(4)
    assert "night" not in scenario.running()
    scenario.step(6)
    assert "night" in scenario.running()


def test_an_overdue_prompt_is_computed_although_interactive_prompts_fill_every_step():
    """It has a slot and gets its share of the token budget."""
    scenario = Scenario(slots=4, pages=200, max_wait_batch=5.0, max_num_batched_tokens=12, enable_prefix_caching=False)
    scenario.submit("night", B, prompt=range(12), tokens=2)
    for i in range(60):
        scenario.submit(f"p{i}", I, prompt=range(i, i + 16), tokens=1)
        scenario.step()
    assert scenario.tokens("night") == text_alone(list(range(12)), 0, 2)


def test_admission_and_preemption_do_not_reset_the_waiting_time():
    """Interactive requests come in bursts, pages are dropped each time, and the batch job still ends."""
    scenario = Scenario(slots=1, swap_speed=1e-9, max_wait_batch=30.0, enable_prefix_caching=False, min_share=8)
    scenario.submit("night", B, prompt=range(40), tokens=16)
    for i in range(60):
        scenario.step(4)
        scenario.submit(f"p{i}", I, tokens=3)
    assert scenario.tokens("night") == text_alone(list(range(40)), 0, 16)


@pytest.mark.parametrize(
    ("speed", "decodes", "tokens"),
    [(10_000, 8, 300), (10_000, 0, 600), (1e9, 8, 2040), (1e9, 0, 2048), (10, 8, 1), (10, 0, 32), (1e9, 4096, 1)],
)
def test_the_prompt_budget_fits_the_time_of_a_step(speed: float, decodes: int, tokens: int):
    """Twice the time without decode rows, and then at least the tokens that are worth a pass over the weights; at most
    a useful number."""
    policy = make_policy(EngineConfig(model="fake").validate(), Costs(1e9, speed))
    assert policy.prompt_tokens(decodes) == tokens


def test_a_configured_budget_is_kept():
    """Decode rows are subtracted first, prompts get the rest."""
    policy = make_policy(EngineConfig(model="fake", max_num_batched_tokens=100).validate(), Costs(1e9, 10))
    assert [policy.prompt_tokens(decodes) for decodes in (0, 1, 32)] == [100, 99, 68]


def test_a_long_prompt_is_chunked_by_the_budget_while_streams_continue():
    """Every step with a chunk of a long prompt also yields a token of the running stream. At 100 tokens a second the
    target time between tokens leaves a few tokens of the prompt to a step."""
    scenario = Scenario(slots=2, pages=80, max_num_batched_tokens=None, size=4)
    scenario.submit("runs", I, tokens=60)
    scenario.step()
    scenario.submit("long", I, prompt=tuple(range(100)), tokens=2)
    while not scenario.tokens("long"):
        before = len(scenario.tokens("runs"))
        scenario.step()
        assert len(scenario.tokens("runs")) == before + 1
    assert 2 <= scenario.runner.most_tokens <= 12
    scenario.finish()


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 8),
    bulk=st.integers(1, 6),
    share=st.integers(1, 6),
    row_seconds=st.sampled_from([0.0, 0.01]),
)
def test_no_request_is_overtaken_for_longer_than_the_stated_bound(seed, slots, bulk, share, row_seconds):
    """Interactive requests always fill every slot. Bulk work that waited its bound goes first, one at a time. Each
    starts after the shares of those before it and after an interactive answer ends, because it preempts none of them.
    With fewer than eight slots, interactive requests get their due service between two of them."""
    rng = random.Random(seed)
    wait, longest = 0.5, 10
    history = History(
        slots=slots, pages=64, row_seconds=row_seconds, max_wait_batch=wait, min_share=share, max_num_batched_tokens=200
    )
    arrived: dict[str, float] = {}
    late = [rng.uniform(0.0, 0.3) for _ in range(bulk)]
    for step in range(400):
        if history.scheduler.waiting.new[I] < 2:
            for _ in range(slots):
                history.arrive([rng.randint(0, 99)] * rng.randint(1, 6), rng.randint(1, longest - 1), service_class=I)
        while late and min(late) <= step * STEP_SECONDS:
            late.remove(min(late))
            tokens = rng.randint(1, 3 * share)
            arrived[history.arrive([rng.randint(0, 99)] * 5, tokens, service_class=B)] = history.now
        history.step()
    for index, (name, at) in enumerate(arrived.items()):
        started = next(e.monotonic_time for e in history.statuses[name] if e.state == "running")
        due_steps = index * (8 * share // slots + longest)  # steps
        assert started <= at + wait + ((index + 1) * (share + 1 + longest) + due_steps) * STEP_SECONDS


@pytest.mark.no_cover  # thousands of steps through lines that other tests cover
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_overdue_bulk_work_delays_interactive_requests_by_one_share_at_most(slots: int):
    """Even if the slot for overdue work is a large part of all slots, interactive requests keep theirs to the end."""
    scenario = Scenario(slots=slots, pages=400, min_share=8, max_wait_batch=20.0)
    for number in range(40):
        scenario.submit(f"bulk{number}", B, tokens=30)
    scenario.step(30)
    for number in range(3):
        names = [f"person{number}-{index}" for index in range(slots)]  # one per slot
        for name in names:
            scenario.submit(name, I, tokens=10)
        scenario.step(8 + 2)
        assert all(scenario.tokens(name) for name in names)
        scenario.step(10)
        assert all(len(scenario.tokens(name)) == 10 for name in names)
    scenario.finish()


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2, 3, 5, 7, 8])
@pytest.mark.parametrize(("prompt", "answer"), [(100, 1), (3, 9)])
def test_overdue_bulk_work_gets_an_eighth_for_any_slots_and_interactive_load(slots: int, prompt: int, answer: int):
    """Interactive requests never stop and exceed the capacity."""
    scenario, steps, people = Scenario(slots=slots, pages=600, min_share=8, max_wait_batch=20.0), 1200, 0
    for number in range(100):
        scenario.submit(f"bulk{number}", B, prompt=(number, 2, 3), tokens=30)
    for _ in range(steps):
        while scenario.scheduler.waiting.new[I] <= slots:
            people += 1
            scenario.submit(f"person{people}", I, prompt=[people % 900] * prompt, tokens=answer)
        scenario.step()
    bulk = sum(isinstance(e, TokenEvent) and e.request_id.startswith("bulk") for e in scenario.events)
    assert 0.06 < bulk / (steps * slots) < 0.15
