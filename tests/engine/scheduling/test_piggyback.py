"""Bulk work is piggybacked as far as it does not delay interactive requests, and preempted sequences keep as much as
possible."""

from __future__ import annotations

import pytest

from engine.scheduling.carousel_state import state_of
from engine.scheduling.policies.carousel import MAX_SERVICE_GAP_TOKENS
from engine.scheduling.policies.step_sharing import PIGGYBACK_SHARE
from engine.types import Phase, PreemptionMode, ServiceClass, WaitReason
from tests.engine.scheduling.history import STEP_SECONDS, History

I, S, B = ServiceClass.INTERACTIVE, ServiceClass.STANDARD, ServiceClass.BATCH  # noqa: E741


def make_bulk_load(bulk: int, **options) -> tuple[History, list[str]]:
    """Return a history with decoding bulk work, in which each row costs as much as a step with one row."""
    history = History(slots=bulk + 1, pages=8 * bulk, row_seconds=STEP_SECONDS, max_num_batched_tokens=200, **options)
    names = [history.arrive([number, 2], 20, service_class=B) for number in range(bulk)]
    history.step()
    history.step()
    return history, names


def num_generated(history: History, names: list[str]) -> list[int]:
    return [len(history.texts[name, 0]) for name in names]


def test_bulk_rows_that_would_delay_an_interactive_request_take_turns():
    """A step may take 1.4 times as long for bulk rows. None fits, but one in sixteen is piggybacked all the same."""
    history, names = make_bulk_load(32, max_step_slowdown=1.4)
    interactive = history.arrive([7], 9, service_class=I)
    history.step()
    before = num_generated(history, names)
    for _ in range(4):
        history.step()
    gained = [after - b for after, b in zip(num_generated(history, names), before, strict=True)]
    assert len(history.texts[interactive, 0]) == 5
    assert sum(gained) == 4 * 32 // PIGGYBACK_SHARE
    assert max(gained) == 1, "rows take turns"
    history.end()


def test_all_bulk_rows_decode_again_when_the_interactive_request_has_ended():
    """The cause of the delay is reported once at its beginning and once at its end, not at every step."""
    history, names = make_bulk_load(4)
    history.arrive([7], 6, service_class=I)
    for _ in range(7):
        history.step()
    before = num_generated(history, names)
    history.step()
    assert [after - b for after, b in zip(num_generated(history, names), before, strict=True)] == [1] * 4
    statuses = [e for e in history.statuses[names[0]] if e.phase is Phase.DECODE]
    assert [e.cause for e in statuses] == [None, WaitReason.BUDGET, None]
    history.end()


@pytest.mark.parametrize(
    ("row_seconds", "max_step_slowdown"), [(0.0, 1.0), (STEP_SECONDS, float("inf")), (STEP_SECONDS / 100, 1.4)]
)
def test_all_bulk_rows_join_if_they_are_cheap_or_the_slowdown_is_unlimited(
    row_seconds: float, max_step_slowdown: float
):
    """All rows are piggybacked as on a GPU, whose steps wait for weights and not for rows."""
    history = History(
        slots=9, pages=64, row_seconds=row_seconds, max_step_slowdown=max_step_slowdown, max_num_batched_tokens=200
    )
    names = [history.arrive([number, 2], 20, service_class=B) for number in range(8)]
    history.step()
    history.arrive([7], 6, service_class=I)
    history.step()
    history.step()
    assert num_generated(history, names) == [3] * 8
    history.end()


def test_no_row_is_delayed_for_a_request_of_its_own_class():
    """Requests of one class do not delay each other."""
    history = History(slots=8, pages=64, row_seconds=STEP_SECONDS, max_num_batched_tokens=200)
    names = [history.arrive([number, 2], 20) for number in range(8)]
    for _ in range(3):
        history.step()
    assert num_generated(history, names) == [3] * 8
    history.end()


def test_a_long_bulk_prompt_is_computed_in_small_chunks_beside_an_interactive_request():
    """Each step piggybacks at least eight tokens."""
    history = History(slots=2, pages=64, row_seconds=STEP_SECONDS, max_num_batched_tokens=200, max_step_slowdown=1.0)
    interactive = history.arrive([7], 20, service_class=I)
    history.step()
    bulk = history.arrive(list(range(40)), 2, service_class=B)
    for _ in range(5):
        assert num_generated(history, [bulk]) == [0]
        history.step()
    assert num_generated(history, [interactive, bulk]) == [6, 1]
    history.end()


def count_piggybacked(history: History, names: list[str]) -> int:
    """Return the number of these requests that get a token in the next step."""
    before = sum(num_generated(history, names))
    history.step()
    return sum(num_generated(history, names)) - before


def test_an_interactive_prompt_makes_no_room_for_bulk_rows():
    """The first token would wait for them, so the number is as beside a decoding request."""
    history = History(
        slots=17, pages=128, row_seconds=STEP_SECONDS / 10, max_num_batched_tokens=200, max_step_slowdown=2.5
    )
    names = [history.arrive([number, 2], 20, service_class=B) for number in range(16)]
    history.step()
    history.step()
    history.arrive(list(range(40)), 9, service_class=I)
    assert count_piggybacked(history, names) == 3, "a quarter of one and a half steps of nine tenths"
    assert count_piggybacked(history, names) == 3
    history.end()


def test_more_bulk_rows_join_the_nearer_a_waiting_request_is_to_being_overdue():
    """A quarter of the permitted slowdown is available at first, and all of it at the end."""
    history = History(
        slots=17, pages=128, row_seconds=STEP_SECONDS / 10, max_num_batched_tokens=200, max_step_slowdown=2.0
    )
    names = [history.arrive([number, 2], 40, service_class=B) for number in range(16)]
    history.step()
    history.step()
    history.arrive([7], 30, service_class=I)
    history.step()
    assert count_piggybacked(history, names) == 2
    for number in range(5):
        history.arrive([99, number], 9, service_class=B)
    history.now += 0.5 * history.config.max_wait_batch
    assert count_piggybacked(history, names) == 6
    history.now += 0.48 * history.config.max_wait_batch
    assert count_piggybacked(history, names) == 9
    history.now += 0.1 * history.config.max_wait_batch
    history.step()
    assert count_piggybacked(history, names) == 12, "beside three admitted requests, two of them overdue"
    history.end()


def test_the_urgency_of_a_class_follows_its_own_bound():
    """The first bound to expire need not be the most urgent relative to its length, and urgency is at most 1."""
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


def test_bulk_prompts_are_piggybacked_beside_interactive_prompts():
    """The next few tokens of bulk prompts are computed in the same step."""
    history = History(slots=3, pages=64, max_num_batched_tokens=200, max_step_slowdown=1.0, row_seconds=STEP_SECONDS)
    history.arrive([7], 30, service_class=I)
    history.step()
    bulk = history.arrive(list(range(48)), 2, service_class=B)
    history.arrive([8] * 20, 5, service_class=I)
    history.step()
    assert history.scheduler.requests[bulk][0].num_computed == 8
    history.end()


def test_bulk_work_alone_decodes_and_prefills_in_one_step():
    """One pass over the weights does both."""
    history = History(slots=3, pages=64, max_num_batched_tokens=11, row_seconds=STEP_SECONDS)
    history.arrive([1, 2], 30, service_class=B)
    history.step()
    history.arrive(list(range(40)), 2, service_class=B)
    history.step()
    assert (history.engine.load().decode_rows, history.engine.load().prefill_tokens) == (1, 10)
    history.end()


def tokens_beside_interactive(interactive_tokens: int, waited: float) -> int:
    """Return the tokens of an overdue bulk prompt in a step of 24, of which eight may be piggybacked. An interactive
    prompt needs `theirs`, and the wait is `waited` times its bound."""
    history = History(slots=3, pages=64, max_num_batched_tokens=25, max_step_slowdown=9.0, row_seconds=STEP_SECONDS)
    history.arrive([7], 40, service_class=I)
    old = history.arrive(list(range(50)), 2, service_class=B)
    history.step()
    if interactive_tokens:
        history.arrive([8] * interactive_tokens, 2, service_class=I)
    history.now += waited * history.config.max_wait_batch
    before = history.scheduler.requests[old][0].num_computed
    history.step()
    read = history.scheduler.requests[old][0].num_computed - before
    history.end()
    return read


@pytest.mark.parametrize(("interactive_tokens", "read"), [(0, 8), (18, 6), (60, 3)])
def test_an_overdue_prompt_is_piggybacked_beside_interactive_prompts(interactive_tokens: int, read: int):
    """It gets the rest of the step after interactive prompts, and at least an eighth of the step."""
    assert tokens_beside_interactive(interactive_tokens, 1.0) == read


@pytest.mark.parametrize(("interactive_tokens", "read"), [(0, [16, 24, 24]), (10, [14, 14, 14]), (60, [3, 3, 3])])
def test_the_more_overdue_a_prompt_is_the_more_tokens_it_gets(interactive_tokens: int, read: list[int]):
    """At twice its bound it gets all that interactive prompts leave, so that a waiting request is served even under
    overload."""
    assert [tokens_beside_interactive(interactive_tokens, waited) for waited in (1.5, 2.0, 9.0)] == read


def test_tokens_of_an_overdue_prompt_count_as_piggybacked_once():
    """The overdue prompt uses the twelve piggybacked tokens; another one gets the minimum only."""
    history = History(slots=3, pages=64, max_num_batched_tokens=40, max_step_slowdown=13.0, row_seconds=STEP_SECONDS)
    history.arrive([7], 40, service_class=I)
    history.arrive(list(range(50)), 2, service_class=B)
    history.step()
    history.now += history.config.max_wait_batch
    young = history.arrive(list(range(9, 49)), 2, service_class=B)
    history.step()
    assert history.scheduler.requests[young][0].num_computed == 8
    history.end()


def test_an_overdue_prompt_is_not_limited_beside_its_own_class():
    """Beside bulk work its prompt is computed like any of its class."""
    history = History(slots=4, pages=64, max_num_batched_tokens=25, row_seconds=STEP_SECONDS)
    history.arrive([7], 40, service_class=S)
    history.arrive([8], 40, service_class=B)
    history.step()
    old = history.arrive(list(range(40)), 2, service_class=S)
    history.step()
    history.now += history.config.max_wait_standard
    history.step()
    assert history.scheduler.requests[old][0].num_computed == 40
    history.end()


def test_bulk_prompts_are_piggybacked_beside_an_overdue_request_of_a_higher_class():
    """Twelve tokens of bulk prompts may be piggybacked, independent of a prompt that is not."""
    history = History(slots=3, pages=64, max_num_batched_tokens=40, max_step_slowdown=13.0, row_seconds=STEP_SECONDS)
    history.arrive([7], 40, service_class=S)
    history.step()
    history.arrive(list(range(60)), 2, service_class=S)
    history.step()
    history.now += history.config.max_wait_standard
    bulk = history.arrive(list(range(9, 49)), 2, service_class=B)
    history.step()
    assert history.scheduler.requests[bulk][0].num_computed == 12
    history.end()


def test_an_overdue_prompt_is_computed_at_once_beside_bulk_work_only():
    """It delays no request of a higher class."""
    history = History(slots=2, pages=64, max_num_batched_tokens=12, max_wait_standard=0.05, row_seconds=STEP_SECONDS)
    history.arrive([7], 40, service_class=B)
    history.step()
    overdue = history.arrive(list(range(20)), 2, service_class=S)
    history.now += 0.1
    history.step()
    history.step()
    assert history.scheduler.requests[overdue][0].num_computed == 20
    history.end()


def test_a_guaranteed_minimum_share_is_not_delayed():
    """A request past its bound gets its turn, and the others take theirs."""
    history = History(
        slots=9, pages=200, row_seconds=STEP_SECONDS, max_wait_batch=0.05, min_share=9, max_num_batched_tokens=200
    )
    interactive_requests = [history.arrive([number], 50, service_class=I) for number in range(8)]
    history.arrive([8], 50, service_class=B)
    history.step()
    old = history.arrive([9, 9], 20, service_class=B)
    for _ in range(7):
        history.step()
    assert history.scheduler.running[-1].request.id == old
    for name in interactive_requests[1:]:
        history.abort(name)
    others = [history.arrive([number, 5], 30, service_class=B) for number in range(7)]
    history.step()
    history.step()
    before = num_generated(history, [old])[0]
    for _ in range(3):
        history.step()
    assert num_generated(history, [old])[0] - before == 3
    assert sum(num_generated(history, others)) < 3 * 7
    history.end()


def test_a_resumed_sequence_reuses_cached_pages_and_copies_only_the_rest():
    """Swapped-out pages that are still cached are not copied back from host memory."""
    history = History(slots=1, pages=16, host=16, max_num_batched_tokens=200)
    name = history.arrive(list(range(12)), 8)
    for _ in range(3):
        history.step()
    history.pause(0, PreemptionMode.SWAP)
    batches = []
    launch = history.engine._runner.launch
    history.engine._runner.launch = lambda batch: batches.append(batch) or launch(batch)
    history.step()
    assert len(batches[0].swap_out) == 4
    assert len(batches[0].swap_in) == 1, "three full pages are cached; the last is not full"
    history.end()
    assert len(history.texts[name, 0]) == 8


def test_a_shortage_of_memory_evicts_the_tail_of_a_preempted_sequence():
    """Dropped pages stay cached until they are reused, the last ones first."""
    history = History(slots=2, pages=10, host=0, swap_speed=1e-9)
    bulk = history.arrive(list(range(24)), 10, service_class=B)
    for _ in range(9):
        history.step()
    interactive = history.arrive(list(range(50, 60)), 2, service_class=I)
    history.step()
    assert history.statuses[bulk][-1].mechanism is PreemptionMode.PARTIAL
    while (interactive, 0) not in history.ends:
        history.step()
    before = history.scheduler.load().counters.recomputed_tokens
    history.end()
    recomputed = history.scheduler.load().counters.recomputed_tokens - before
    assert 0 < recomputed < 16


def test_the_victim_is_the_cheapest_to_preempt():
    """The second of three requests of a class has computed least."""
    history = History(slots=3, pages=64, host=0, enable_prefix_caching=False, max_num_batched_tokens=200)
    for length in (30, 4, 20):
        history.arrive([length] * length, 30, service_class=B)
        for _ in range(6):
            history.step()
    history.arrive([7], 2, service_class=I)
    history.step()
    assert [s.request.id for s in history.scheduler.running] == ["r4", "r1", "r3"]
    history.end()


def test_a_resumed_request_runs_its_share_before_it_is_preempted_again():
    """Minimum share comes before cost."""
    history = History(slots=3, pages=64, host=0, min_share=6, enable_prefix_caching=False, max_num_batched_tokens=200)
    for length in (20, 4, 20):
        history.arrive([length] * length, 30, service_class=B)
    history.step()
    for expected in ("r2", "r3"):
        interactive = history.arrive([7], 2, service_class=I)
        history.step()
        assert expected not in [s.request.id for s in history.scheduler.running]
        while (interactive, 0) not in history.ends:
            history.step()
        history.step()
    history.end()


def test_the_oldest_of_a_class_is_spared_although_it_is_cheapest_to_preempt():
    """The oldest always makes progress, so a shortage of memory cannot stop all requests in turn."""
    history = History(slots=2, pages=8, host=0, enable_prefix_caching=False, max_num_batched_tokens=200)
    history.arrive([1] * 2, 20, service_class=B)
    history.arrive([2] * 12, 12, service_class=B)
    while not history.scheduler.waiting.paused[B]:
        history.step()
    assert [s.request.id for s in history.scheduler.running] == ["r1"]
    history.end()


def test_requests_of_a_tenant_with_more_service_are_preempted_first():
    """The greedy tenant's request is preempted although another costs less and arrived last."""
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
    state_of(greedy).account.charge(4 * MAX_SERVICE_GAP_TOKENS)
    history.arrive([7], 2, service_class=I)
    history.step()
    assert modest in {s.request.id for s in history.scheduler.running}
    history.end()


def test_a_request_resumed_while_its_chunk_is_in_flight_publishes_no_unwritten_page():
    """It has other pages by then, and requests with the same prompt would read their old contents."""
    history = History(slots=3, pages=24, host=0, swap_speed=1.0, runs_ahead=True, prefill_chunk=1)
    prompt = list(range(7, 16))
    history.arrive(prompt, 3)
    for _ in range(4):
        history.step()
    history.pause(0, PreemptionMode.RECOMPUTE)
    history.arrive([50, 51, 52, 53, 54], 3, service_class=I)
    history.step()
    history.arrive(prompt[:5], 3)
    history.end()


def test_a_request_delayed_at_the_end_of_its_prompt_reports_the_decode_phase():
    """Otherwise its time would be recorded as prefill to the end."""
    history = History(slots=8, pages=64, row_seconds=STEP_SECONDS, runs_ahead=True, max_step_slowdown=1.0)
    history.arrive([1], 50, service_class=I)
    history.step()
    names = [history.arrive([2, 3, 4, number], 40, service_class=B) for number in range(4)]
    history.end()
    for name in names:
        totals = history.audits[name].totals_ms(history.now)
        assert totals[Phase.DECODE] > 10 * totals[Phase.PREFILL]


def test_undelivered_tokens_are_not_counted():
    """A request that ended in the previous step already has its next token in flight."""
    history = History(slots=4, pages=64, runs_ahead=True)
    for number in range(50):
        history.arrive([7, 8, 9, number], 12, stop=tuple(range(0, 1000, 4)))
    history.end()
    assert history.scheduler.load().counters.generated_tokens == sum(map(len, history.texts.values()))


def test_unlimited_slowdown_works_with_a_negative_intercept_of_the_fit():
    """Many rows cost more than proportionally, and the fitted line predicts no time for a few."""
    history = History(slots=8, pages=64, max_step_slowdown=float("inf"), row_seconds=0.001)
    pace = history.scheduler.policy.step_time_model
    pace._base = -0.1
    assert pace.step_seconds(1) == 0.0
    history.arrive([1], 9, service_class=I)
    history.arrive([2], 9, service_class=B)
    history.end()
