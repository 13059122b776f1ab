"""What the policy promises, each on a small stage."""

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
    Cause,
    EndEvent,
    Mechanism,
    Request,
    SamplingParams,
    ServiceClass,
    StatusEvent,
    TokenEvent,
)
from tests.engine.scheduling.history import STEP, History
from tests.engine.scheduling.test_scheduler_machine import model_info
from tests.fakes import MemoryRunner, text_alone

I, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH  # noqa: E741


class Stage:
    """An engine on a made-up model, with a clock that is turned by hand."""

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

    def told(self, name: str) -> list[StatusEvent]:
        return [e for e in self.events if isinstance(e, StatusEvent) and e.request_id == name]

    def running(self) -> list[str]:
        return [s.request.id for s in self.scheduler.running]


@pytest.mark.parametrize("scarce", ["slots", "pages", "budget"])
def test_a_person_gets_a_token_in_the_very_next_step(scarce: str):
    """Whatever batch work has taken all of: slots, pages, or the token budget."""
    stage = {
        "slots": lambda: Stage(slots=2),
        "pages": lambda: Stage(slots=8, pages=16),
        "budget": lambda: Stage(slots=4, max_num_batched_tokens=6, pages=64),
    }[scarce]()
    for i in range(8):
        stage.submit(f"b{i}", B, prompt=range(24 if scarce == "budget" else 6), tokens=30)
    stage.step(6 if scarce != "budget" else 2)
    stage.submit("person", I, prompt=(5,))
    stage.step()
    assert len(stage.tokens("person")) == 1
    stage.finish()
    for i in range(8):
        prompt = range(24 if scarce == "budget" else 6)
        assert stage.tokens(f"b{i}") == text_alone(list(prompt), 0, 30)


@pytest.mark.parametrize(("waiting", "running"), [(S, S), (B, B), (I, I), (B, S), (S, I)])
def test_nobody_is_paused_for_an_equal_or_a_lower_class(waiting: ServiceClass, running: ServiceClass):
    """They wait, and are told what for."""
    stage = Stage(slots=1)
    stage.submit("first", running)
    stage.step(3)
    stage.submit("second", waiting)
    stage.step(2)
    assert stage.running() == ["first"]
    assert stage.told("second")[-1].cause is Cause.SLOTS
    assert sum(map(stage.scheduler.load().counters.paused_by, Mechanism)) == 0


def test_the_victim_is_of_the_lowest_class_and_the_latest_to_arrive():
    """It has lost the least."""
    stage = Stage(slots=4)
    for name, service_class in (("s", S), ("b1", B), ("b2", B), ("i", I)):
        stage.submit(name, service_class)
        stage.step()
    stage.submit("person", I)
    stage.step()
    assert set(stage.running()) == {"s", "b1", "i", "person"}
    paused = stage.told("b2")[-1]
    assert (paused.state, paused.by) == ("paused", I)


def test_a_paused_sequence_comes_back_before_those_who_came_later():
    """It keeps its place in its class."""
    stage = Stage(slots=1)
    stage.submit("first", B, tokens=6)
    stage.step(2)
    stage.submit("later", B, tokens=2)
    stage.submit("person", I, tokens=2)
    stage.step(3)
    assert stage.running() == ["first"]


@pytest.mark.parametrize(
    ("swap_speed", "host", "mechanism"),
    [(1e9, 32, Mechanism.SWAP), (1e-9, 32, Mechanism.RECOMPUTE), (1e9, 1, Mechanism.RECOMPUTE)],
)
def test_the_cheaper_way_to_pause_is_taken(swap_speed: float, host: int, mechanism: Mechanism):
    """Swap when copying is faster than computing again and host memory has room."""
    stage = Stage(slots=1, swap_speed=swap_speed, host=host, enable_prefix_caching=False)
    stage.submit("b", B, prompt=range(10))
    stage.step(4)
    stage.submit("person", I, tokens=3)
    stage.step()
    assert stage.told("b")[-1].mechanism is mechanism
    stage.finish()
    assert stage.tokens("b") == text_alone(list(range(10)), 0, 20)


def test_priority_orders_within_a_class_lower_first():
    """vLLM's meaning."""
    stage = Stage(slots=1)
    stage.submit("now", S, tokens=2)
    stage.step()
    for name, priority in (("c", 5), ("a", -3), ("b", 0)):
        stage.submit(name, S, tokens=1, priority=priority)
    stage.finish()
    order = [e.request_id for e in stage.events if isinstance(e, TokenEvent)]
    assert order == ["now", "now", "a", "b", "c"]


def test_batch_work_advances_although_people_never_stop_coming():
    """More people than two slots can serve; overdue work gets its shares all the same, and is paused between them."""
    stage = Stage(slots=2, max_wait_batch=10.0, min_share=3)
    stage.submit("night", B, tokens=12)
    for i in range(200):
        stage.submit(f"p{i}", I, tokens=4)
        stage.submit(f"q{i}", I, tokens=4)
        stage.step(3)
        if len(stage.tokens("night")) == 12:
            break
    assert stage.tokens("night") == text_alone([1, 2, 3], 0, 12)
    assert sum(e.state == "paused" for e in stage.told("night")) >= 3


def test_a_flood_of_old_batch_work_does_not_shut_people_out():
    """All of it is overdue, and still a person waits for nobody."""
    stage = Stage(slots=8, max_wait_batch=5.0, min_share=50, pages=200, max_num_batched_tokens=64)
    for i in range(100):
        stage.submit(f"b{i}", B, tokens=40)
    stage.step(20)
    for i in range(6):
        stage.submit(f"p{i}", I, tokens=5)
    stage.step()
    assert all(len(stage.tokens(f"p{i}")) == 1 for i in range(6))


def test_a_large_overdue_request_gets_its_pages_although_people_never_stop_coming():
    """It needs nearly the whole pool; people pass it until it has waited twice its bound, then it is its turn."""
    stage = Stage(slots=8, pages=24, max_wait_batch=20.0, min_share=4, max_num_batched_tokens=128)
    for i in range(150):
        stage.submit(f"p{i}", I, prompt=range(i, i + 8), tokens=8)
        stage.step()
        if i == 8:
            stage.submit("large", B, prompt=range(80), tokens=4)
    assert stage.tokens("large") == text_alone(list(range(80)), 0, 4)
    started = next(e.at for e in stage.told("large") if e.state == "running")
    assert 9 + 40.0 <= started <= 9 + 60.0


def test_who_waits_is_told_its_place_and_how_it_changes():
    """1 is next."""
    stage = Stage(slots=1)
    stage.submit("now", S, tokens=5)
    for i in range(3):
        stage.submit(f"w{i}", S, tokens=1)
    stage.finish()
    assert [e.position for e in stage.told("w2") if e.state == "queued" and e.position] == [3, 2, 1]


def test_an_abort_crosses_every_state_and_leaves_nothing():
    """Waiting, running, paused by swap, paused for recomputation, held back; and before the swap has happened."""
    stage = Stage(slots=2)
    stage.submit("n", B, prompt=range(9), n=3)  # its choices are held back until the prompt is computed
    stage.submit("w1", B)
    stage.engine.abort("n", 2)
    stage.step()
    stage.submit("w2", B)
    stage.step()
    for sequence, mechanism in zip(list(stage.scheduler.running), (Mechanism.SWAP, Mechanism.RECOMPUTE), strict=True):
        stage.scheduler.pause(sequence, stage.now, mechanism=mechanism)
    for name in ("n", "w1", "w2", "unknown"):
        stage.engine.abort(name)
    stage.submit("after", B)
    stage.finish()
    assert stage.scheduler.memory.pool.held == 0
    assert stage.scheduler.memory.host.used == 0
    ends = [(e.request_id, e.choice) for e in stage.events if isinstance(e, EndEvent)]
    assert sorted(ends) == [("n", 0), ("n", 1), ("n", 2), ("w1", 0), ("w2", 0)]
    assert stage.tokens("after") == text_alone([1, 2, 3], 0, 20)


def test_a_swap_out_that_is_called_off_writes_nowhere():
    """Its host page may be another's by then."""
    stage = Stage(slots=2, host=1)
    stage.submit("gone", B)
    stage.submit("kept", B)
    stage.step(1)
    gone, kept = stage.scheduler.running
    stage.scheduler.pause(gone, stage.now, mechanism=Mechanism.SWAP)
    stage.engine.abort("gone")
    stage.scheduler.pause(kept, stage.now, mechanism=Mechanism.SWAP)
    stage.finish()
    assert stage.tokens("kept") == text_alone([1, 2, 3], 0, 20)


def test_a_sibling_does_not_copy_pages_that_are_still_on_their_way():
    """Its lead comes back from host memory in the same step, to other pages: a person has taken those it had."""
    stage = Stage(slots=4, enable_prefix_caching=False, max_num_batched_tokens=64)
    stage.submit("n", B, prompt=range(6), n=2)
    stage.step()  # the prompt is computed; the second choice may join from now on
    stage.scheduler.pause(stage.scheduler.running[0], stage.now, mechanism=Mechanism.SWAP)
    stage.submit("person", I, prompt=range(7, 14))
    stage.finish()
    assert stage.tokens("n", 1) == text_alone(list(range(6)), 1, 20)


def test_static_batching_waits_for_the_whole_batch():
    """The baseline: nobody joins until all have left."""
    stage = Stage(slots=2, batching="static")
    for name, tokens in (("short", 2), ("long", 10), ("next", 2)):
        stage.submit(name, S, tokens=tokens)
    stage.step(9)
    assert stage.running() == ["long"]
    stage.step(2)
    assert stage.running() == ["next"]


def test_an_overdue_choice_may_take_its_own_lead_s_slot():
    """One slot, two choices: the second is overdue, pauses the first, and computes the prompt for itself."""
    stage = Stage(slots=1, enable_prefix_caching=False, max_wait_standard=5.0, min_share=4)
    stage.submit("n", S, prompt=range(7), tokens=20, n=2)
    stage.finish()
    for choice in range(2):
        assert stage.tokens("n", choice) == text_alone(list(range(7)), choice, 20)


def test_a_person_who_shares_a_prefix_with_running_batch_work_is_let_in_when_there_is_room_and_not_before():
    """Pages that the person takes up again are not made available by pausing who holds them."""
    stage = Stage(slots=4, pages=9, max_num_batched_tokens=64)
    stage.submit("b", B, prompt=range(21), tokens=3)
    stage.submit("j", I, prompt=range(30, 40), tokens=2)
    stage.step()
    stage.submit("i", I, prompt=[*range(20), *range(50, 56)], tokens=2)
    stage.finish()
    assert stage.tokens("i") == text_alone([*range(20), *range(50, 56)], 0, 2)
    assert stage.tokens("b") == text_alone(list(range(21)), 0, 3)


def test_nobody_overtakes_an_overdue_request_of_its_own_class():
    """Being overdue can only help: the lane is busy, and the class's order still holds."""
    stage = Stage(slots=2, max_wait_standard=3.0, min_share=50, pages=200)
    for i in range(30):
        stage.submit(f"s{i}", S, tokens=6)
        stage.step(2)
    stage.finish()
    started = [e.request_id for e in stage.events if isinstance(e, StatusEvent) and e.state == "running"]
    first_starts = list(dict.fromkeys(started))
    assert first_starts == [f"s{i}" for i in range(30)]


def test_who_waited_for_another_engine_has_waited():
    """It is overdue at once, among people who fill every slot."""
    stage = Stage(slots=2, max_wait_batch=20.0, min_share=4)
    stage.now = 100.0
    stage.submit("night", B, tokens=4, since=85.0)
    for i in range(12):
        stage.submit(f"p{i}", I, tokens=8)
    stage.step(4)
    assert "night" not in stage.running()
    stage.step(6)
    assert "night" in stage.running()


def test_an_overdue_prompt_is_read_although_people_s_prompts_fill_every_step():
    """It has a slot and gets its share of the token budget."""
    stage = Stage(slots=4, pages=200, max_wait_batch=5.0, max_num_batched_tokens=12, enable_prefix_caching=False)
    stage.submit("night", B, prompt=range(12), tokens=2)
    for i in range(60):
        stage.submit(f"p{i}", I, prompt=range(i, i + 16), tokens=1)
        stage.step()
    assert stage.tokens("night") == text_alone(list(range(12)), 0, 2)


def test_being_let_in_and_thrown_out_again_does_not_restart_the_clock():
    """People come in bursts, pages are dropped each time; the batch job still ends."""
    stage = Stage(slots=1, swap_speed=1e-9, max_wait_batch=30.0, enable_prefix_caching=False, min_share=8)
    stage.submit("night", B, prompt=range(40), tokens=16)
    for i in range(60):
        stage.step(4)
        stage.submit(f"p{i}", I, tokens=3)
    assert stage.tokens("night") == text_alone(list(range(40)), 0, 16)


@pytest.mark.parametrize(
    ("speed", "decodes", "tokens"),
    [(10_000, 8, 300), (10_000, 0, 600), (1e9, 8, 2040), (1e9, 0, 2048), (10, 8, 32), (10, 0, 32), (1e9, 4096, 32)],
)
def test_prompts_get_what_is_read_in_the_time_of_a_step(speed: float, decodes: int, tokens: int):
    """Twice that while nobody decodes; never less than a pass over the weights is worth, never needlessly many."""
    policy = make_policy(EngineConfig(model="fake").validate(), Costs(1e9, speed))
    assert policy.prompt_tokens(decodes) == tokens


def test_a_budget_that_was_asked_for_is_kept():
    """Decoding sequences take theirs first, prompts get the rest."""
    policy = make_policy(EngineConfig(model="fake", max_num_batched_tokens=100).validate(), Costs(1e9, 10))
    assert [policy.prompt_tokens(decodes) for decodes in (0, 1, 32)] == [100, 99, 68]


def test_a_long_prompt_is_read_in_pieces_of_the_budget_while_streams_go_on():
    """Every step of somebody else's long prompt yields a token for the one who runs."""
    stage = Stage(slots=2, pages=80, max_num_batched_tokens=None, size=4)
    stage.submit("runs", I, tokens=60)
    stage.step()
    stage.submit("long", I, prompt=tuple(range(200)), tokens=2)
    for _ in range(6):
        before = len(stage.tokens("runs"))
        stage.step()
        assert len(stage.tokens("runs")) == before + 1
    assert stage.runner.most_tokens == 1 + 32
    stage.step()
    assert len(stage.tokens("long")) == 1
    stage.finish()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 8),
    bulk=st.integers(1, 6),
    share=st.integers(1, 6),
    row_seconds=st.sampled_from([0.0, 0.01]),
)
def test_nobody_is_overtaken_for_longer_than_the_stated_bound(seed, slots, bulk, share, row_seconds):
    """People never stop coming and always fill every slot. Bulk work that waited its bound goes first, one at a time:
    each starts after the shares of those before it, and once somebody's answer has ended: it pauses no person. With
    fewer than eight slots people have what they are owed between two of them."""
    dice = random.Random(seed)
    wait, longest = 0.5, 10
    history = History(
        slots=slots, pages=64, row_seconds=row_seconds, max_wait_batch=wait, min_share=share, max_num_batched_tokens=200
    )
    arrived: dict[str, float] = {}
    late = [dice.uniform(0.0, 0.3) for _ in range(bulk)]
    for step in range(400):
        if history.scheduler.waiting.fresh[I] < 2:
            for _ in range(slots):
                history.arrive(
                    [dice.randint(0, 99)] * dice.randint(1, 6), dice.randint(1, longest - 1), service_class=I
                )
        while late and min(late) <= step * STEP:
            late.remove(min(late))
            tokens = dice.randint(1, 3 * share)
            arrived[history.arrive([dice.randint(0, 99)] * 5, tokens, service_class=B)] = history.now
        history.step()
    for place, (name, at) in enumerate(arrived.items()):
        started = next(e.at for e in history.told[name] if e.state == "running")
        owed = place * (8 * share // slots + longest)  # steps
        assert started <= at + wait + ((place + 1) * (share + 1 + longest) + owed) * STEP


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_old_bulk_work_keeps_people_waiting_for_one_share_at_most(slots: int):
    """Where one slot for the overdue is a large part of all, too; then they have it to the end."""
    stage = Stage(slots=slots, pages=400, min_share=8, max_wait_batch=20.0)
    for number in range(40):
        stage.submit(f"bulk{number}", B, tokens=30)
    stage.step(30)
    for number in range(3):
        names = [f"person{number}-{place}" for place in range(slots)]  # as many as there are slots
        for name in names:
            stage.submit(name, I, tokens=10)
        stage.step(8 + 2)
        assert all(stage.tokens(name) for name in names)
        stage.step(10)
        assert all(len(stage.tokens(name)) == 10 for name in names)
    stage.finish()


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 7, 8])
@pytest.mark.parametrize(("prompt", "answer"), [(100, 1), (3, 9)])
def test_old_bulk_work_has_an_eighth_however_many_slots_there_are_and_whatever_people_ask_for(
    slots: int, prompt: int, answer: int
):
    """They never stop asking, for more than there is."""
    stage, steps, people = Stage(slots=slots, pages=600, min_share=8, max_wait_batch=20.0), 1200, 0
    for number in range(100):
        stage.submit(f"bulk{number}", B, prompt=(number, 2, 3), tokens=30)
    for _ in range(steps):
        while stage.scheduler.waiting.fresh[I] <= slots:
            people += 1
            stage.submit(f"person{people}", I, prompt=[people % 900] * prompt, tokens=answer)
        stage.step()
    bulk = sum(isinstance(e, TokenEvent) and e.request_id.startswith("bulk") for e in stage.events)
    assert 0.06 < bulk / (steps * slots) < 0.15
