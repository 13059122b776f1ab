"""Restart policy: whether a crashed engine is replaced, and after which delay."""

from app.engine_client.restart_policy import MAX_FAILED_STARTS, RestartPolicy


def count(policy: RestartPolicy, *, made_progress=False, was_at_work=True, had_culprit=False, seconds=0.0) -> None:
    """Count an engine that ended while it was busy and without progress, unless stated otherwise."""
    policy.record_end(made_progress=made_progress, had_work=was_at_work, had_culprit=had_culprit, seconds=seconds)


def test_the_pause_before_the_next_engine_doubles_up_to_ten_seconds():
    """There is no delay after an engine that made progress."""
    policy, pauses = RestartPolicy(), []
    for _ in range(MAX_FAILED_STARTS):
        pauses.append(policy.backoff_seconds)
        assert not policy.is_exhausted
        count(policy)
    assert pauses == [0, 1, 2, 4, 8, 10, 10, 10] and policy.is_exhausted
    count(policy, made_progress=True)
    assert policy.backoff_seconds == 0 and not policy.is_exhausted


def test_crashes_with_a_culprit_count_from_the_second_in_a_row():
    """An engine that crashes on every request is broken."""
    policy, pauses = RestartPolicy(), []
    for had_culprit in (True, False, True, True, True):
        count(policy, had_culprit=had_culprit)
        pauses.append(policy.backoff_seconds)
    assert pauses == [0, 1, 1, 2, 4]


def test_a_crash_after_long_idle_time_is_not_counted():
    """It is not counted, unless it was busy."""
    policy = RestartPolicy()
    count(policy, was_at_work=False, seconds=60.0)
    assert policy.backoff_seconds == 0
    count(policy, was_at_work=False, seconds=1.0)
    assert policy.backoff_seconds == 1
    count(policy, was_at_work=True, seconds=60.0)
    assert policy.backoff_seconds == 2
