"""What steps cost is learnt from those that were made."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.scheduling.costs import Costs
from engine.scheduling.pace import Pace
from engine.scheduling.policies import make_policy
from engine.scheduling.policy import LEAST_PROMPT_TOKENS, MOST_SECONDS


def costs(decode: float, row: float) -> Costs:
    return Costs(1e4, 1e3, decode, row)


def test_it_begins_with_what_was_measured_at_start():
    """A step with one row, and what each further one adds."""
    pace = Pace(costs(0.010, 0.002))
    assert [pace.step_seconds(rows) for rows in (1, 2, 8)] == pytest.approx([0.010, 0.012, 0.024])


def test_a_first_guess_that_was_wrong_is_put_right_by_the_steps_that_follow():
    """The machine was twice as slow when it started, and rows looked free."""
    pace, dice = Pace(costs(0.004, 0.0)), random.Random(1)
    for _ in range(1500):
        rows = dice.randint(1, 8)
        pace.observe(rows, 0, (0.0018 + 0.0003 * rows) * dice.uniform(0.9, 1.2))
    assert pace.step_seconds(1) == pytest.approx(0.0022, rel=0.1)
    assert pace.step_seconds(8) == pytest.approx(0.0044, rel=0.1)


def test_steps_that_read_few_prompt_tokens_teach_what_rows_cost_too():
    """Where some are read in every step there are no others; and what the tokens cost is not laid to the rows."""
    pace, dice = Pace(costs(0.004, 0.0)), random.Random(5)
    for _ in range(3000):
        rows, tokens = dice.randint(1, 40), dice.randint(1, 30)
        pace.observe(rows, tokens, 0.003 + 0.0003 * rows + 0.0001 * tokens)
    assert pace.row_seconds == pytest.approx(0.0003, rel=0.1)
    assert pace.token_seconds == pytest.approx(0.0001, rel=0.2)
    assert pace.seconds(20, 10) == pytest.approx(0.010, rel=0.05)


def test_what_a_lone_step_takes_holds_the_line_where_rows_are_many_and_hardly_differ():
    """Their contexts grow meanwhile, which is nothing that rows cost; a few rows are foreseen all the same."""
    for drift in (-1, 1):
        pace = Pace(costs(0.001, 0.00002))
        for step in range(2000):
            phase = step % 100 / 100
            pace.observe(256 + drift * round(phase), 0, 0.0055 + 0.0005 * phase)
        assert pace.row_seconds == pytest.approx(0.00002, rel=0.15)
        assert pace.step_seconds(16) == pytest.approx(0.0013, rel=0.1)


def test_a_step_that_was_held_up_by_something_else_teaches_nothing():
    """Nor one that took no time, as in a test."""
    pace = Pace(costs(0.010, 0.001))
    for seconds in (1.0, 0.0, -1.0):
        pace.observe(3, 0, seconds)
    assert pace.step_seconds(3) == pytest.approx(0.012)


def test_the_price_of_a_row_is_kept_where_steps_have_all_the_same_rows():
    """It cannot be told from them; what a step takes can."""
    pace = Pace(costs(0.010, 0.001))
    for _ in range(5000):
        pace.observe(8, 0, 0.034)
    assert pace.row_seconds > 0
    assert pace.step_seconds(8) == pytest.approx(0.034, rel=0.02)


def test_a_token_of_a_prompt_is_charged_what_steps_with_prompts_took_beyond_their_rows():
    """The machine was busy with something else when its prefill speed was measured."""
    pace = Pace(costs(0.002, 0.0001))
    dice = random.Random(2)
    for _ in range(400):
        rows, tokens = dice.randint(0, 8), dice.randint(8, 128)
        pace.observe(rows, tokens, pace.step_seconds(rows) + 0.0002 * tokens * dice.uniform(0.9, 1.1))
    assert pace.prompt_seconds(100) == pytest.approx(0.02, rel=0.05)


def test_a_step_may_take_what_decode_steps_are_seen_to_take_not_what_one_took_at_start():
    """Three of them; and more prompt tokens go into it when a token turns out to cost little."""
    policy = make_policy(EngineConfig(model="none").validate(), costs(0.020, 0.0))
    assert policy.step_seconds == MOST_SECONDS
    assert policy.prompt_tokens(1) == LEAST_PROMPT_TOKENS
    for _ in range(3000):
        policy.pace.observe(1, 0, 0.005)
        policy.pace.observe(1, 100, 0.020)
    assert policy.step_seconds == pytest.approx(0.015, rel=0.05)
    assert policy.prompt_tokens(1) == pytest.approx(100, abs=5)


def test_rows_beyond_a_lone_one_leave_less_of_a_step_s_time_for_prompts_until_they_have_half_of_the_step():
    """Who waits is not starved by who speaks: beside 11 rows, which take 0.015 s, prompts have as long."""
    policy = make_policy(EngineConfig(model="none", step_time=0.020).validate(), Costs(1e4, 10_000.0, 0.005, 0.001))
    assert [policy.prompt_tokens(rows) for rows in (1, 6, 8, 11, 50)] == [200, 150, 130, 150, 200]
    assert policy.prompt_tokens(0) == 400


def test_prompts_beside_rows_are_as_long_as_can_be_recorded_with_them():
    """Rows that ride and are not paced have their place in it too; where nobody decodes nothing is lost by a pass that
    is not recorded, and what was configured is what is done."""
    costs = Costs(1e4, 100_000.0, 0.005, 0.0, recorded_tokens=600)
    policy = make_policy(EngineConfig(model="none").validate(), costs)
    assert [policy.prompt_tokens(rows) for rows in (1, 100)] == [599, 500]
    assert [policy.prompt_tokens(rows, riding=50) for rows in (0, 100)] == [550, 450]
    assert policy.prompt_tokens(0) == 2048
    told = make_policy(EngineConfig(model="none", max_num_batched_tokens=1000).validate(), costs)
    assert told.prompt_tokens(100) == 900


def test_a_neighbour_s_noise_makes_no_step_longer():
    """A third of the steps takes twice as long. One that was over too soon to be true teaches nothing."""
    pace, dice = Pace(costs(0.008, 0.0)), random.Random(3)
    for _ in range(1000):
        pace.observe(1, 0, 0.004 * dice.choice((1.0, 1.0, 2.0)))
        pace.observe(1, 0, 0.0005)
    assert pace.lone_seconds == pytest.approx(0.004, rel=0.15)


def test_one_quiet_moment_is_not_what_a_lone_step_takes_ever_after():
    """Those that follow put it right."""
    pace = Pace(costs(0.005, 0.0))
    pace.observe(1, 0, 0.003)
    assert pace.lone_seconds < 0.005
    for _ in range(500):
        pace.observe(1, 0, 0.005)
    assert pace.lone_seconds == pytest.approx(0.005, rel=0.01)


def test_steps_of_many_rows_put_it_right_too_where_nobody_is_alone():
    """As far as it is known what rows cost; half of them take longer than they would by themselves."""
    pace, dice = Pace(costs(0.005, 0.0002)), random.Random(4)
    for _ in range(600):
        rows = dice.randint(1, 32)
        pace.observe(rows, 0, 0.0048 + 0.0002 * rows)
    for _ in range(10):
        pace.observe(1, 0, 0.003)
    assert pace.lone_seconds < 0.0035
    for _ in range(300):
        rows = dice.randint(16, 32)
        pace.observe(rows, 0, (0.0048 + 0.0002 * rows) * dice.choice((1.0, 1.1)))
    assert pace.lone_seconds == pytest.approx(0.005, rel=0.1)


def test_steps_of_always_as_many_rows_say_nothing_of_a_lone_one_but_that_it_takes_no_longer():
    """The line through them reaches down to one row with any slope."""
    pace = Pace(costs(0.005, 0.0002))
    for _ in range(5000):
        pace.observe(32, 0, 0.012)
    pace.observe(1, 0, 0.003)
    before = pace.lone_seconds
    for _ in range(500):
        pace.observe(32, 0, 0.012)
    assert pace.lone_seconds == before


def test_a_step_of_many_rows_says_that_a_lone_one_takes_no_longer():
    """Where nobody is ever alone, that is all there is to go by."""
    pace = Pace(costs(0.020, 0.0))
    for _ in range(100):
        pace.observe(8, 0, 0.010)
    assert pace.lone_seconds == pytest.approx(0.010, rel=0.01)


@given(
    steps=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64), st.floats(0, 10)), max_size=60),
    decode=st.floats(0, 1),
)
def test_no_history_makes_a_step_a_row_or_a_token_cost_less_than_nothing(steps, decode):
    """Whatever was seen."""
    pace = Pace(costs(decode, decode / 10))
    for rows, tokens, seconds in steps:
        pace.observe(rows, tokens, seconds)
        assert pace.row_seconds >= 0
        assert pace.token_seconds >= 0
        assert all(pace.step_seconds(n) >= 0 for n in (1, 8, 64))


def test_a_machine_that_has_become_much_slower_is_believed_after_a_while():
    """As when its host moves it: every step is far beyond what was foreseen, and goes on being."""
    pace = Pace(costs(0.002, 0.0002))

    def seconds(rows: int, tokens: int) -> float:
        return 6 * (0.0018 + 0.0002 * rows + 1e-3 * tokens)

    for _ in range(40):
        pace.observe(4, 0, seconds(4, 0))
    assert pace.step_seconds(4) == pytest.approx(0.0026)
    for _ in range(3000):
        pace.observe(4, 0, seconds(4, 0))
        pace.observe(4, 50, seconds(4, 50))
    assert pace.step_seconds(4) == pytest.approx(seconds(4, 0), rel=0.1)
    assert pace.prompt_seconds(50) == pytest.approx(seconds(0, 50) - seconds(0, 0), rel=0.1)
