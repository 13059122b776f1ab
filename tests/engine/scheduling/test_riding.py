"""Bulk work rides along with people as far as it does not hold them up; what is paused keeps what it can."""

from __future__ import annotations

import pytest

from engine.scheduling.policies.carousel import RIDING_SHARE, UNEVEN
from engine.types import Cause, Mechanism, Phase, ServiceClass
from tests.engine.scheduling.history import STEP, History

I, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH  # noqa: E741


def crowd(bulk: int, **options) -> tuple[History, list[str]]:
    """Bulk work that decodes, each row costing as much as a step with one."""
    history = History(slots=bulk + 1, pages=8 * bulk, row_seconds=STEP, max_num_batched_tokens=200, **options)
    names = [history.arrive([number, 2], 20, service_class=B) for number in range(bulk)]
    history.step()
    history.step()
    return history, names


def said(history: History, names: list[str]) -> list[int]:
    return [len(history.texts[name, 0]) for name in names]


def test_rows_of_bulk_work_that_would_hold_a_person_up_wait_for_their_turn():
    """A step may last 1.4 times as long for them: none fits, and one in sixteen rides all the same."""
    history, names = crowd(32, stretch=1.4)
    person = history.arrive([7], 9, service_class=I)
    history.step()
    before = said(history, names)
    for _ in range(4):
        history.step()
    gained = [after - b for after, b in zip(said(history, names), before, strict=True)]
    assert len(history.texts[person, 0]) == 5
    assert sum(gained) == 4 * 32 // RIDING_SHARE
    assert max(gained) == 1, "they take turns"
    history.end()


def test_all_ride_again_when_the_person_has_left():
    """And what held them back is told once when it begins and once when it ends, not at every step."""
    history, names = crowd(4)
    history.arrive([7], 6, service_class=I)
    for _ in range(7):
        history.step()
    before = said(history, names)
    history.step()
    assert [after - b for after, b in zip(said(history, names), before, strict=True)] == [1] * 4
    told = [e for e in history.told[names[0]] if e.phase is Phase.DECODE]
    assert [e.cause for e in told] == [None, Cause.BUDGET, None]
    history.end()


@pytest.mark.parametrize(("row_seconds", "stretch"), [(0.0, 1.0), (STEP, float("inf")), (STEP / 100, 1.4)])
def test_all_ride_where_they_cost_next_to_nothing_or_may_cost_what_they_like(row_seconds: float, stretch: float):
    """As on a GPU, which waits for weights and not for rows."""
    history = History(slots=9, pages=64, row_seconds=row_seconds, stretch=stretch, max_num_batched_tokens=200)
    names = [history.arrive([number, 2], 20, service_class=B) for number in range(8)]
    history.step()
    history.arrive([7], 6, service_class=I)
    history.step()
    history.step()
    assert said(history, names) == [3] * 8
    history.end()


def test_nobody_is_held_back_for_an_equal():
    """People among themselves, or bulk work among itself."""
    history = History(slots=8, pages=64, row_seconds=STEP, max_num_batched_tokens=200)
    names = [history.arrive([number, 2], 20) for number in range(8)]
    for _ in range(3):
        history.step()
    assert said(history, names) == [3] * 8
    history.end()


def test_a_long_bulk_prompt_is_read_in_small_bites_beside_a_person_and_still_is_read():
    """Eight tokens at the least ride in each step."""
    history = History(slots=2, pages=64, row_seconds=STEP, max_num_batched_tokens=200, stretch=1.0)
    person = history.arrive([7], 20, service_class=I)
    history.step()
    bulk = history.arrive(list(range(40)), 2, service_class=B)
    for _ in range(5):
        assert said(history, [bulk]) == [0]
        history.step()
    assert said(history, [person, bulk]) == [6, 1]
    history.end()


def riding(history: History, names: list[str]) -> int:
    """How many of them get a token in a step."""
    before = sum(said(history, names))
    history.step()
    return sum(said(history, names)) - before


def test_somebodys_prompt_makes_no_room_for_rows_of_bulk_work():
    """The first token would wait for them: as many ride as beside one who decodes."""
    history = History(slots=17, pages=128, row_seconds=STEP / 10, max_num_batched_tokens=200, stretch=2.5)
    names = [history.arrive([number, 2], 20, service_class=B) for number in range(16)]
    history.step()
    history.step()
    history.arrive(list(range(40)), 9, service_class=I)
    assert riding(history, names) == 3, "a quarter of one and a half steps of nine tenths"
    assert riding(history, names) == 3
    history.end()


def test_more_bulk_work_rides_the_nearer_somebody_who_waits_is_to_being_overdue():
    """Of the stretch there is a quarter for it at first, and all of it in the end."""
    history = History(slots=17, pages=128, row_seconds=STEP / 10, max_num_batched_tokens=200, stretch=2.0)
    names = [history.arrive([number, 2], 40, service_class=B) for number in range(16)]
    history.step()
    history.step()
    history.arrive([7], 30, service_class=I)
    history.step()
    assert riding(history, names) == 2
    for number in range(5):
        history.arrive([99, number], 9, service_class=B)
    history.now += 0.5 * history.config.max_wait_batch
    assert riding(history, names) == 6
    history.now += 0.48 * history.config.max_wait_batch
    assert riding(history, names) == 9
    history.now += 0.1 * history.config.max_wait_batch
    history.step()
    assert riding(history, names) == 12, "beside three who are served, two of whom were overdue"
    history.end()


def test_each_class_is_as_urgent_as_its_own_bound_has_it():
    """Whose alarm comes first is not whose wait is nearest its end; and one that is long past is no more urgent."""
    history = History(slots=1, pages=64, max_wait_standard=4.0, max_wait_batch=10.0)
    policy = history.scheduler.policy
    history.arrive([7], 60, service_class=I)
    history.step()
    history.arrive([8], 2, service_class=B)
    history.now += 5.0
    history.arrive([9], 2, service_class=S)
    history.now += 1.0
    history.step()
    assert policy._urgency(history.now) == pytest.approx(0.6, abs=0.01)
    history.now += 1.5
    assert policy._urgency(history.now) == pytest.approx(0.75, abs=0.01)
    assert policy._urgency(history.now + 100.0) == 1.0
    history.end()


def test_bulk_prompts_ride_beside_somebodys():
    """The next few tokens of them."""
    history = History(slots=3, pages=64, max_num_batched_tokens=200, stretch=1.0, row_seconds=STEP)
    history.arrive([7], 30, service_class=I)
    history.step()
    bulk = history.arrive(list(range(48)), 2, service_class=B)
    history.arrive([8] * 20, 5, service_class=I)
    history.step()
    assert history.scheduler.requests[bulk][0].num_computed == 8
    history.end()


def test_bulk_work_alone_decodes_and_reads_prompts_at_once():
    """As one pass over the weights does both."""
    history = History(slots=3, pages=64, max_num_batched_tokens=11, row_seconds=STEP)
    history.arrive([1, 2], 30, service_class=B)
    history.step()
    history.arrive(list(range(40)), 2, service_class=B)
    history.step()
    assert (history.engine.load().decode_rows, history.engine.load().prefill_tokens) == (1, 10)
    history.end()


def read_beside_a_person(theirs: int, waited: float) -> int:
    """How many tokens of an old bulk prompt go into a step of 24, of which eight may ride and a person's prompt needs
    `theirs`, after so many times its bound."""
    history = History(slots=3, pages=64, max_num_batched_tokens=25, stretch=9.0, row_seconds=STEP)
    history.arrive([7], 40, service_class=I)
    old = history.arrive(list(range(50)), 2, service_class=B)
    history.step()
    if theirs:
        history.arrive([8] * theirs, 2, service_class=I)
    history.now += waited * history.config.max_wait_batch
    before = history.scheduler.requests[old][0].num_computed
    history.step()
    read = history.scheduler.requests[old][0].num_computed - before
    history.end()
    return read


@pytest.mark.parametrize(("theirs", "read"), [(0, 8), (18, 6), (60, 3)])
def test_who_is_overdue_is_read_beside_people_as_far_as_it_may_ride(theirs: int, read: int):
    """Of what their prompts leave; and an eighth of the step in any case."""
    assert read_beside_a_person(theirs, 1.0) == read


@pytest.mark.parametrize(("theirs", "read"), [(0, [16, 24, 24]), (10, [14, 14, 14]), (60, [3, 3, 3])])
def test_the_later_it_is_the_more_is_read_of_it(theirs: int, read: list[int]):
    """At twice its bound all that their prompts leave: where more comes than the machine can do, whoever waits does not
    wait for ever."""
    assert [read_beside_a_person(theirs, waited) for waited in (1.5, 2.0, 9.0)] == read


def test_what_is_read_of_the_overdue_does_not_ride_a_second_time():
    """Twelve tokens of bulk prompts may ride, and the old one has them; the least that is read of others is."""
    history = History(slots=3, pages=64, max_num_batched_tokens=40, stretch=13.0, row_seconds=STEP)
    history.arrive([7], 40, service_class=I)
    history.arrive(list(range(50)), 2, service_class=B)
    history.step()
    history.now += history.config.max_wait_batch
    young = history.arrive(list(range(9, 49)), 2, service_class=B)
    history.step()
    assert history.scheduler.requests[young][0].num_computed == 8
    history.end()


def test_who_is_overdue_rides_on_nobody_of_its_own_class():
    """Beside bulk work its prompt is read as any of its class is."""
    history = History(slots=4, pages=64, max_num_batched_tokens=25, row_seconds=STEP)
    history.arrive([7], 40, service_class=S)
    history.arrive([8], 40, service_class=B)
    history.step()
    old = history.arrive(list(range(40)), 2, service_class=S)
    history.step()
    history.now += history.config.max_wait_standard
    history.step()
    assert history.scheduler.requests[old][0].num_computed == 40
    history.end()


def test_bulk_prompts_ride_beside_the_overdue_of_a_higher_class_as_beside_any():
    """Twelve tokens of them may, whatever is read of a prompt that rides on nobody."""
    history = History(slots=3, pages=64, max_num_batched_tokens=40, stretch=13.0, row_seconds=STEP)
    history.arrive([7], 40, service_class=S)
    history.step()
    history.arrive(list(range(60)), 2, service_class=S)
    history.step()
    history.now += history.config.max_wait_standard
    bulk = history.arrive(list(range(9, 49)), 2, service_class=B)
    history.step()
    assert history.scheduler.requests[bulk][0].num_computed == 12
    history.end()


def test_who_is_overdue_is_read_at_once_where_only_bulk_work_decodes():
    """It holds up nobody who goes before it."""
    history = History(slots=2, pages=64, max_num_batched_tokens=12, max_wait_standard=0.05, row_seconds=STEP)
    history.arrive([7], 40, service_class=B)
    history.step()
    overdue = history.arrive(list(range(20)), 2, service_class=S)
    history.now += 0.1
    history.step()
    history.step()
    assert history.scheduler.requests[overdue][0].num_computed == 20
    history.end()


def test_a_claim_to_a_minimum_share_is_not_held_back():
    """It waited past its bound; its turn is its turn, and the others take theirs."""
    history = History(
        slots=9, pages=200, row_seconds=STEP, max_wait_batch=0.05, min_share=9, max_num_batched_tokens=200
    )
    people = [history.arrive([number], 50, service_class=I) for number in range(8)]
    history.arrive([8], 50, service_class=B)
    history.step()
    old = history.arrive([9, 9], 20, service_class=B)
    for _ in range(7):
        history.step()
    assert history.scheduler.running[-1].request.id == old
    for name in people[1:]:
        history.abort(name)
    others = [history.arrive([number, 5], 30, service_class=B) for number in range(7)]
    history.step()
    history.step()
    before = said(history, [old])[0]
    for _ in range(3):
        history.step()
    assert said(history, [old])[0] - before == 3
    assert sum(said(history, others)) < 3 * 7
    history.end()


def test_a_paused_sequence_takes_up_again_what_the_cache_still_has_and_copies_only_the_rest():
    """Swapped out, with nobody after its pages: nothing comes back from host memory."""
    history = History(slots=1, pages=16, host=16, max_num_batched_tokens=200)
    name = history.arrive(list(range(12)), 8)
    for _ in range(3):
        history.step()
    history.pause(0, Mechanism.SWAP)
    batches = []
    launch = history.engine._runner.launch
    history.engine._runner.launch = lambda batch: batches.append(batch) or launch(batch)
    history.step()
    assert len(batches[0].swap_out) == 4
    assert len(batches[0].swap_in) == 1, "three full pages are in the cache; the last is not full"
    history.end()
    assert len(history.texts[name, 0]) == 8


def test_memory_that_is_short_costs_a_paused_sequence_its_tail_and_not_its_beginning():
    """Dropped pages stay in the cache until they are taken, the last first."""
    history = History(slots=2, pages=10, host=0, swap_speed=1e-9)
    bulk = history.arrive(list(range(24)), 10, service_class=B)
    for _ in range(9):
        history.step()
    person = history.arrive(list(range(50, 60)), 2, service_class=I)
    history.step()
    assert history.told[bulk][-1].mechanism is Mechanism.PARTIAL
    while (person, 0) not in history.ends:
        history.step()
    before = history.scheduler.load().counters.recomputed_tokens
    history.end()
    recomputed = history.scheduler.load().counters.recomputed_tokens - before
    assert 0 < recomputed < 16


def test_the_victim_is_the_one_whose_pause_costs_least():
    """Of three of a class, the one that came in the middle has done least."""
    history = History(slots=3, pages=64, host=0, enable_prefix_caching=False, max_num_batched_tokens=200)
    for length in (30, 4, 20):
        history.arrive([length] * length, 30, service_class=B)
        for _ in range(6):
            history.step()
    history.arrive([7], 2, service_class=I)
    history.step()
    assert [s.request.id for s in history.scheduler.running] == ["r4", "r1", "r3"]
    history.end()


def test_who_came_back_runs_its_share_before_it_is_paused_again_if_another_can_be():
    """However little it would cost."""
    history = History(slots=3, pages=64, host=0, min_share=6, enable_prefix_caching=False, max_num_batched_tokens=200)
    for length in (20, 4, 20):
        history.arrive([length] * length, 30, service_class=B)
    history.step()
    for expected in ("r2", "r3"):
        person = history.arrive([7], 2, service_class=I)
        history.step()
        assert expected not in [s.request.id for s in history.scheduler.running]
        while (person, 0) not in history.ends:
            history.step()
        history.step()
    history.end()


def test_the_oldest_of_a_class_is_spared_though_its_pause_would_cost_least():
    """It always gets on, so memory that is short cannot stop everybody in turn."""
    history = History(slots=2, pages=8, host=0, enable_prefix_caching=False, max_num_batched_tokens=200)
    history.arrive([1] * 2, 20, service_class=B)
    history.arrive([2] * 12, 12, service_class=B)
    while not history.scheduler.waiting.paused[B]:
        history.step()
    assert [s.request.id for s in history.scheduler.running] == ["r1"]
    history.end()


def test_of_tenants_that_had_more_than_others_theirs_make_way_first():
    """Though pausing the other would cost less, and it came last."""
    history = History(slots=3, pages=400, host=0, max_num_batched_tokens=2000, enable_prefix_caching=False)
    for number in range(60):
        history.arrive([number] * 30, 8, service_class=B, tenant="greedy")
    while len(history.ends) < 57:
        history.step()
    history.arrive([1], 30, service_class=B, tenant="idle")  # spared as the oldest
    history.arrive([1] * 30, 30, service_class=B, tenant="greedy")
    history.step()
    modest = history.arrive([1, 2, 3], 30, service_class=B, tenant="modest")
    while [s.request.tenant for s in history.scheduler.running] != ["idle", "greedy", "modest"]:
        history.step()
    greedy = history.scheduler.running[1]
    greedy.account.charge(4 * UNEVEN)
    history.arrive([7], 2, service_class=I)
    history.step()
    assert modest in {s.request.id for s in history.scheduler.running}
    history.end()


def test_who_is_let_in_again_while_its_chunk_is_under_way_publishes_nothing_unwritten():
    """It has other pages by then, and whoever shares its prompt would read what was in them before."""
    history = History(slots=3, pages=24, host=0, swap_speed=1.0, runs_ahead=True, prefill_chunk=1)
    prompt = list(range(7, 16))
    history.arrive(prompt, 3)
    for _ in range(4):
        history.step()
    history.pause(0, Mechanism.RECOMPUTE)
    history.arrive([50, 51, 52, 53, 54], 3, service_class=I)
    history.step()
    history.arrive(prompt[:5], 3)
    history.end()


def test_whose_prompt_ends_while_it_is_held_back_is_told_to_decode_afterwards():
    """Its time would be booked as reading the prompt to the end."""
    history = History(slots=8, pages=64, row_seconds=STEP, runs_ahead=True, stretch=1.0)
    history.arrive([1], 50, service_class=I)
    history.step()
    names = [history.arrive([2, 3, 4, number], 40, service_class=B) for number in range(4)]
    history.end()
    for name in names:
        totals = history.audits[name].totals(history.now)
        assert totals[Phase.DECODE] > 10 * totals[Phase.PREFILL]


def test_tokens_that_nobody_gets_are_not_counted():
    """Of who ended in the step before, whose next token was under way already."""
    history = History(slots=4, pages=64, runs_ahead=True)
    for number in range(50):
        history.arrive([7, 8, 9, number], 12, stop=tuple(range(0, 1000, 4)))
    history.end()
    assert history.scheduler.load().counters.generated_tokens == sum(map(len, history.texts.values()))


def test_rows_may_cost_what_they_like_where_the_line_through_their_costs_begins_below_nothing():
    """Many rows cost more than so many times one, and the line through what they cost foresees nothing for a few."""
    history = History(slots=8, pages=64, stretch=float("inf"), row_seconds=0.001)
    pace = history.scheduler.policy.pace
    pace._base = -0.1
    assert pace.step_seconds(1) == 0.0
    history.arrive([1], 9, service_class=I)
    history.arrive([2], 9, service_class=B)
    history.end()
