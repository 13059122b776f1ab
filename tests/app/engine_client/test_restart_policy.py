"""Restart policy: whether a crashed engine is replaced, and after which delay."""

from app.engine_client.restart_policy import MAX_FAILED_STARTS, RestartPolicy


def count(lives: RestartPolicy, *, got_on=False, was_at_work=True, had_culprit=False, seconds=0.0) -> None:
    """Count an engine that ended while it was busy and without progress, unless stated otherwise."""
    lives.record_end(made_progress=got_on, had_work=was_at_work, had_culprit=had_culprit, seconds=seconds)


def test_the_pause_before_the_next_engine_doubles_up_to_ten_seconds():
    """There is no delay after an engine that made progress."""
    lives, pauses = RestartPolicy(), []
    for _ in range(MAX_FAILED_STARTS):
        pauses.append(lives.backoff_seconds)
        assert not lives.is_exhausted
        count(lives)
    assert pauses == [0, 1, 2, 4, 8, 10, 10, 10] and lives.is_exhausted
    count(lives, got_on=True)
    assert lives.backoff_seconds == 0 and not lives.is_exhausted


def test_crashes_with_a_culprit_count_from_the_second_in_a_row():
    """An engine that crashes on every request is broken."""
    lives, pauses = RestartPolicy(), []
    for had_culprit in (True, False, True, True, True):
        count(lives, had_culprit=had_culprit)
        pauses.append(lives.backoff_seconds)
    assert pauses == [0, 1, 1, 2, 4]


def test_a_crash_after_long_idle_time_is_not_counted():
    """It is not counted, unless it was busy."""
    lives = RestartPolicy()
    count(lives, was_at_work=False, seconds=60.0)
    assert lives.backoff_seconds == 0
    count(lives, was_at_work=False, seconds=1.0)
    assert lives.backoff_seconds == 1
    count(lives, was_at_work=True, seconds=60.0)
    assert lives.backoff_seconds == 2
