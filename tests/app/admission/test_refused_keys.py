"""Delays for wrong keys."""

from __future__ import annotations

from app.admission.refused_keys import FORGET_SECONDS, FREE_ATTEMPTS, MAX_DELAY_SECONDS, MAX_NETWORKS, RefusedKeys


def test_the_delay_grows_per_network_up_to_a_limit_and_is_forgotten():
    """Other networks are not delayed."""
    now = 100.0
    refused = RefusedKeys(lambda: now)
    assert [refused.count("a") for _ in range(FREE_ATTEMPTS)] == [0.0] * FREE_ATTEMPTS
    assert [refused.count("a") for _ in range(3)] == [0.1, 0.2, 0.4]
    assert [refused.count("a") for _ in range(2000)][-1] == MAX_DELAY_SECONDS
    assert refused.count("b") == 0.0
    now += FORGET_SECONDS + 1
    assert refused.count("a") == 0.0
    assert refused.total == FREE_ATTEMPTS + 3 + 2000 + 2


def test_the_number_of_remembered_networks_is_bounded():
    """Networks with the oldest attempts are forgotten."""
    refused = RefusedKeys(lambda: 0.0)
    for number in range(MAX_NETWORKS + 10):
        refused.count(str(number))
    assert len(refused._attempts) == MAX_NETWORKS
