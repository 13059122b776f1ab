"""Sessions that wait for their client to come back."""

from __future__ import annotations

import asyncio

import pytest

from app.admission import kept_sessions
from app.admission.kept_sessions import MIN_SESSION_BYTES, KeptSessions
from app.errors import ApiError
from tests.fakes import FakeSession


def keep(sessions: KeptSessions, *kept: FakeSession) -> None:
    for session in kept:
        session.sessions = sessions
        sessions.connect(session)
        sessions.release(session, keeps=True)


async def test_only_its_owner_takes_a_session_up():
    """To another owner it is as unknown as one that never was."""
    sessions = KeptSessions()
    session = FakeSession("s")
    keep(sessions, session)
    for session_id, owner in (("s", "bert"), ("t", "anna")):
        with pytest.raises(ApiError, match=f"there is no session '{session_id}'") as refused:
            await sessions.take(session_id, owner)
        assert (refused.value.status, refused.value.code) == (404, "session_not_found")
    assert await sessions.take("s", "anna") is session
    assert (len(sessions), sessions.bytes, session.has_ended) == (0, 0, False)
    with pytest.raises(ApiError):
        sessions.check("s", "anna")


async def test_a_client_may_come_back_before_the_server_notices_the_loss():
    """The connection that it had is ended."""
    sessions = KeptSessions()
    session = FakeSession("s", sessions=sessions)
    sessions.connect(session)
    assert await sessions.take("s", "anna") is session and session.is_displaced


async def test_a_session_that_is_not_kept_is_ended():
    """Its client has closed the connection."""
    sessions = KeptSessions()
    session = FakeSession("s")
    sessions.connect(session)
    sessions.release(session, keeps=False)
    assert session.has_ended and not len(sessions)


async def test_the_memory_of_kept_sessions_is_bounded_by_tenant_and_in_all(monkeypatch: pytest.MonkeyPatch):
    """The tenant that holds the most loses the session that was lost first; an empty one counts too."""
    monkeypatch.setattr(kept_sessions, "MAX_TENANT_BYTES", 4 * MIN_SESSION_BYTES)
    monkeypatch.setattr(kept_sessions, "MAX_BYTES", 5 * MIN_SESSION_BYTES)
    sessions = KeptSessions()
    annas = [FakeSession(f"a{n}") for n in range(5)]
    keep(sessions, *annas)
    assert [session.has_ended for session in annas] == [True, False, False, False, False]
    berts = [FakeSession(f"b{n}", "bert", "bert") for n in range(2)]
    keep(sessions, *berts)
    assert [session.has_ended for session in annas + berts] == [True, True, False, False, False, False, False]
    large = FakeSession("b2", "bert", "bert", size=4 * MIN_SESSION_BYTES + 1)
    keep(sessions, large)
    assert large.has_ended and all(session.has_ended for session in berts)
    assert sessions.bytes == 3 * MIN_SESSION_BYTES and sessions.ended["evicted"] == 5


async def test_a_session_expires(monkeypatch: pytest.MonkeyPatch):
    """Its client has not come back in time."""
    monkeypatch.setattr(kept_sessions, "KEEP_SECONDS", 0.0)
    sessions = KeptSessions()
    session = FakeSession("s")
    keep(sessions, session)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert session.has_ended and sessions.ended["expired"] == 1
