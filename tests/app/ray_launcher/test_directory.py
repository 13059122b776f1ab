"""The list of processes in a Ray cluster."""

from __future__ import annotations

from app.ray_launcher.directory import API, ENGINE, MAX_SILENCE_SECONDS, Directory


def test_a_process_is_listed_from_its_report_until_it_leaves_or_is_silent():
    """Each kind on its own, with the newest address of an actor."""
    now = 0.0
    directory = Directory("secret", lambda: now)
    assert directory.token() == "secret" and directory.addresses(ENGINE) == {}
    for name, address in (("e0", "a:1"), ("e1", "b:1"), ("e0", "a:2")):
        directory.report(ENGINE, name, address)
    directory.report(API, "api", "a:8001")
    assert directory.addresses(ENGINE) == {"e0": "a:2", "e1": "b:1"} and directory.addresses(API) == {"api": "a:8001"}
    directory.remove("e1")
    directory.remove("unknown")
    assert directory.addresses(ENGINE) == {"e0": "a:2"}
    now = MAX_SILENCE_SECONDS
    directory.report(API, "api", "a:8001")
    assert directory.addresses(ENGINE) == {"e0": "a:2"}
    now += 0.1
    assert directory.addresses(ENGINE) == {} and directory.addresses(API) == {"api": "a:8001"}


def test_the_last_fleet_that_claims_the_processes_owns_them():
    """No fleet is known at first."""
    directory = Directory("secret")
    assert directory.owner() == ""
    directory.claim("first")
    directory.claim("second")
    assert directory.owner() == "second"
