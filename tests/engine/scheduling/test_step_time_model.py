"""The cost of steps is learnt from measured steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.scheduling.costs import Costs
from engine.scheduling.policies import make_policy
from engine.scheduling.policy import MAX_STEP_SECONDS
from engine.scheduling.step_time_model import StepTimeModel


def costs(decode: float, row: float) -> Costs:
    return Costs(1e4, 1e3, decode, row)


def test_the_estimate_starts_with_startup_measurements():
    """The estimate starts with the cost of a step with one row and of each further row."""
    pace = StepTimeModel(costs(0.010, 0.002))
    assert [pace.step_seconds(rows) for rows in (1, 2, 8)] == pytest.approx([0.010, 0.012, 0.024])


def test_later_steps_correct_a_wrong_first_estimate():
    """At startup the machine was half as fast, and rows seemed free."""
    pace, rng = StepTimeModel(costs(0.004, 0.0)), random.Random(1)
    for _ in range(1500):
        rows = rng.randint(1, 8)
        pace.observe(rows, 0, (0.0018 + 0.0003 * rows) * rng.uniform(0.9, 1.2))
    assert pace.step_seconds(1) == pytest.approx(0.0022, rel=0.1)
    assert pace.step_seconds(8) == pytest.approx(0.0044, rel=0.1)


def test_steps_with_few_prompt_tokens_also_teach_the_cost_of_rows():
    """If every step has prompt tokens there are no others to learn from; token costs are not attributed to rows."""
    pace, rng = StepTimeModel(costs(0.004, 0.0)), random.Random(5)
    for _ in range(3000):
        rows, tokens = rng.randint(1, 40), rng.randint(1, 30)
        pace.observe(rows, tokens, 0.003 + 0.0003 * rows + 0.0001 * tokens)
    assert pace.row_seconds == pytest.approx(0.0003, rel=0.1)
    assert pace.token_seconds == pytest.approx(0.0001, rel=0.2)
    assert pace.seconds(20, 10) == pytest.approx(0.010, rel=0.05)


def test_the_single_row_time_anchors_the_fit_if_row_counts_hardly_differ():
    """Contexts grow meanwhile, which is not a cost of rows; steps of a few rows are still estimated well."""
    for drift in (-1, 1):
        pace = StepTimeModel(costs(0.001, 0.00002))
        for step in range(2000):
            phase = step % 100 / 100
            pace.observe(256 + drift * round(phase), 0, 0.0055 + 0.0005 * phase)
        assert pace.row_seconds == pytest.approx(0.00002, rel=0.15)
        assert pace.step_seconds(16) == pytest.approx(0.0013, rel=0.1)


def test_a_delayed_step_is_ignored():
    """A step without duration, as in a test, is ignored too."""
    pace = StepTimeModel(costs(0.010, 0.001))
    for seconds in (1.0, 0.0, -1.0):
        pace.observe(3, 0, seconds)
    assert pace.step_seconds(3) == pytest.approx(0.012)


def test_the_cost_of_a_row_is_kept_if_all_steps_have_equal_rows():
    """Row costs cannot be derived from such steps; the step time can."""
    pace = StepTimeModel(costs(0.010, 0.001))
    for _ in range(5000):
        pace.observe(8, 0, 0.034)
    assert pace.row_seconds > 0
    assert pace.step_seconds(8) == pytest.approx(0.034, rel=0.02)


def test_a_prompt_token_costs_the_time_that_steps_take_beyond_their_rows():
    """The machine was busy when its prefill speed was measured."""
    pace = StepTimeModel(costs(0.002, 0.0001))
    rng = random.Random(2)
    for _ in range(400):
        rows, tokens = rng.randint(0, 8), rng.randint(8, 128)
        pace.observe(rows, tokens, pace.step_seconds(rows) + 0.0002 * tokens * rng.uniform(0.9, 1.1))
    assert pace.prompt_seconds(100) == pytest.approx(0.02, rel=0.05)


def test_the_step_time_limit_follows_measured_decode_steps():
    """The limit is three decode steps, and it admits more prompt tokens when a token turns out to be cheap."""
    policy = make_policy(EngineConfig(model="none").validate(), costs(0.020, 0.0))
    assert policy.step_seconds == MAX_STEP_SECONDS
    assert policy.prompt_tokens(0) == 60 and policy.prompt_tokens(1) == 30
    for _ in range(3000):
        policy.step_time_model.observe(1, 0, 0.005)
        policy.step_time_model.observe(1, 100, 0.020)
    assert policy.step_seconds == pytest.approx(0.015, rel=0.05)
    assert policy.prompt_tokens(1) == pytest.approx(100, abs=5)


def test_decode_rows_reduce_the_prompt_budget_down_to_half_of_the_step():
    """Decode rows do not starve waiting prompts: beside 11 rows, which take 0.015 s, prompts get as much."""
    policy = make_policy(EngineConfig(model="none", step_time=0.020).validate(), Costs(1e4, 10_000.0, 0.005, 0.001))
    assert [policy.prompt_tokens(rows) for rows in (1, 6, 8, 11, 50)] == [200, 150, 130, 150, 200]
    assert policy.prompt_tokens(0) == 400


def test_prompts_beside_decode_rows_fit_into_a_recording():
    """Piggybacked rows count towards the recording too. Without decode rows an unrecorded pass costs nothing extra, and
    a configured budget is kept."""
    costs = Costs(1e4, 100_000.0, 0.005, 0.0, recorded_tokens=600)
    policy = make_policy(EngineConfig(model="none").validate(), costs)
    assert [policy.prompt_tokens(rows) for rows in (1, 100)] == [599, 500]
    assert [policy.prompt_tokens(rows, piggyback_rows=50) for rows in (0, 100)] == [550, 450]
    assert policy.prompt_tokens(0) == 2048
    configured = make_policy(EngineConfig(model="none", max_num_batched_tokens=1000).validate(), costs)
    assert configured.prompt_tokens(100) == 900


def test_noise_of_other_processes_does_not_increase_the_estimate():
    """A third of the steps takes twice as long; a step that is implausibly short is ignored."""
    pace, rng = StepTimeModel(costs(0.008, 0.0)), random.Random(3)
    for _ in range(1000):
        pace.observe(1, 0, 0.004 * rng.choice((1.0, 1.0, 2.0)))
        pace.observe(1, 0, 0.0005)
    assert pace.single_row_seconds == pytest.approx(0.004, rel=0.15)


def test_one_fast_step_does_not_lower_the_single_row_time_permanently():
    """Later steps correct the estimate."""
    pace = StepTimeModel(costs(0.005, 0.0))
    pace.observe(1, 0, 0.003)
    assert pace.single_row_seconds < 0.005
    for _ in range(500):
        pace.observe(1, 0, 0.005)
    assert pace.single_row_seconds == pytest.approx(0.005, rel=0.01)


def test_steps_of_many_rows_correct_the_single_row_time_too():
    """The correction is as exact as the row cost, although half of the steps are disturbed and take longer."""
    pace, rng = StepTimeModel(costs(0.005, 0.0002)), random.Random(4)
    for _ in range(600):
        rows = rng.randint(1, 32)
        pace.observe(rows, 0, 0.0048 + 0.0002 * rows)
    for _ in range(10):
        pace.observe(1, 0, 0.003)
    assert pace.single_row_seconds < 0.0035
    for _ in range(300):
        rows = rng.randint(16, 32)
        pace.observe(rows, 0, (0.0048 + 0.0002 * rows) * rng.choice((1.0, 1.1)))
    assert pace.single_row_seconds == pytest.approx(0.005, rel=0.1)


def test_steps_of_constant_rows_only_bound_the_single_row_time():
    """A line through them can reach one row with any slope."""
    pace = StepTimeModel(costs(0.005, 0.0002))
    for _ in range(5000):
        pace.observe(32, 0, 0.012)
    pace.observe(1, 0, 0.003)
    before = pace.single_row_seconds
    for _ in range(500):
        pace.observe(32, 0, 0.012)
    assert pace.single_row_seconds == before


def test_a_step_of_many_rows_bounds_the_single_row_time():
    """Without single-row steps this bound is the only information."""
    pace = StepTimeModel(costs(0.020, 0.0))
    for _ in range(100):
        pace.observe(8, 0, 0.010)
    assert pace.single_row_seconds == pytest.approx(0.010, rel=0.01)


@given(
    steps=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64), st.floats(0, 10)), max_size=60),
    decode=st.floats(0, 1),
)
def test_no_estimated_cost_is_ever_negative(steps, decode):
    """This holds for any observations."""
    pace = StepTimeModel(costs(decode, decode / 10))
    for rows, tokens, seconds in steps:
        pace.observe(rows, tokens, seconds)
        assert pace.row_seconds >= 0
        assert pace.token_seconds >= 0
        assert all(pace.step_seconds(n) >= 0 for n in (1, 8, 64))


def test_a_machine_that_became_much_slower_is_accepted_after_a_while():
    """For example after a migration, every step takes far longer than estimated, permanently."""
    pace = StepTimeModel(costs(0.002, 0.0002))

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


@given(start=st.integers(0, 10**6), work=st.floats(1.0, 1e5), ratio=st.sampled_from([0.0, 1e-9, 3e-4, 0.1]))
def test_tokens_within_some_work_are_as_many_as_fit(start: int, work: float, ratio: float):
    """One more would exceed it; without attention to earlier positions every token counts as one."""
    model = StepTimeModel(Costs(1e4, 1e3, attention_ratio=ratio))
    tokens = model.tokens_within(work, start)
    assert model.work(start, tokens) <= work * (1 + 1e-9)
    assert model.work(start, tokens + 1) >= work * (1 - 1e-9)


@given(st.integers(0, 4000), st.integers(1, 4000), st.integers(0, 8), st.floats(0, 0.01))
def test_the_pace_of_prompts_is_the_time_of_the_steps_that_read_one(start: int, length: int, rows: int, ratio: float):
    """Steps are full but for the last one, as the scheduler fills them."""
    model = StepTimeModel(Costs(1e4, 1e3, 0.01, 0.002, attention_ratio=ratio))
    pace, at, seconds = model.prompt_pace(rows, work=500), start, 0.0
    while at < start + length:
        tokens = min(start + length - at, max(1, model.tokens_within(500, at)))
        seconds += model.seconds(rows, model.work(at, tokens))
        at += tokens
    assert pace.seconds(start, length) == pytest.approx(seconds, rel=0.1)


def test_prompts_alone_are_read_in_long_chunks_where_a_step_costs_as_much_for_a_few_tokens():
    """A GPU reads 2,048 tokens in 10 ms, and any fewer in 9 ms, the host's time for launching a step."""
    policy, rng = make_policy(EngineConfig(model="none").validate(), costs(0.001, 0.0)), random.Random(4)
    model = policy.step_time_model
    chunks = []
    for _ in range(60):
        left = rng.randint(300, 3000)
        while left:
            chunks.append(min(left, policy.prompt_tokens(0)))
            left -= chunks[-1]
            model.observe(0, chunks[-1], max(0.009, 5e-6 * chunks[-1]))
    assert policy.prompt_tokens(0) > 1500
    assert model.seconds(0, 1000) == pytest.approx(0.009, rel=0.15)


def test_the_base_time_of_prompts_alone_is_not_part_of_steps_with_rows():
    """There it is the host's time for launching, which a recorded step does not take."""
    model, rng = StepTimeModel(costs(0.002, 0.0001)), random.Random(6)
    for _ in range(400):
        rows, tokens = rng.randint(0, 8), rng.randint(8, 128)
        model.observe(rows, tokens, (0.0019 + 0.0001 * rows if rows else 0.006) + 0.0002 * tokens)
    assert model.prompt_base == pytest.approx(0.006, rel=0.05)
    assert model.seconds(4, 100) == pytest.approx(0.0223, rel=0.05)
    assert model.seconds(0, 100) == pytest.approx(0.026, rel=0.05)
